// Asking the Host for Turns: POST, GET and DELETE of an invocation.

import { ask, json, Problem, problemOf } from "./wire.js";

const BODY_BYTES = 1_048_576;

/** Return the Problem with a text that is too long for a request, null where it is not. */
export function tooLong(text) {
  if (new Blob([bodyOf(text)]).size <= BODY_BYTES) return null;
  return new Problem(413, "body_too_large", "a message may have 1 MiB at most");
}

/**
 * Ask for a Turn and wait for its end; return the Problem that it ended with, null for none.
 * Throws Unreachable; an abort by `signal` comes through.
 */
export async function post(id, text, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await ask(pathOf(id), { method: "POST", headers, body: bodyOf(text), signal });
  return response.ok ? null : problemOf(response);
}

/**
 * Return where an invocation stands: its `state`, "unknown" if the Host does not know it, and
 * the `error` of one that came to nothing. Throws Problem or Unreachable.
 */
export async function stateOf(id) {
  const response = await ask(pathOf(id));
  if (response.status === 404) return { state: "unknown" };
  if (!response.ok) throw await problemOf(response);
  return json(response);
}

/** Ask for an invocation to be cancelled; return its state. Throws Problem or Unreachable. */
export async function cancel(id) {
  const response = await ask(pathOf(id), { method: "DELETE" });
  if (!response.ok) throw await problemOf(response);
  return (await json(response)).state;
}

function pathOf(id) {
  return `/api/v1/agent/invocations/${encodeURIComponent(id)}`;
}

function bodyOf(text) {
  return JSON.stringify({ input: text });
}
