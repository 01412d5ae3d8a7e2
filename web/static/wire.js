// Speaking to the Host: every failure is one of two, an answer that says no, or no answer.

import { exactly } from "./words.js";

/** A Host that has stood still for so long is as good as away. */
const PATIENCE_MS = 10_000;

/** The Host answered that it will not: `status`, `code`, `message` (RFC 9457). */
export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** There was no answer, or not all of it: what became of the request is not known. */
export class Unreachable extends Error {}

/**
 * Return the response to a request. Throws Unreachable, also for an answer that does not begin
 * in time; with a `signal` of the caller's there is no such limit, and its abort comes through.
 */
export async function ask(path, { method = "GET", headers = {}, body, signal } = {}) {
  try {
    const options = { method, headers, body, cache: "no-store", redirect: "error" };
    return await fetch(path, { ...options, signal: signal ?? AbortSignal.timeout(PATIENCE_MS) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable("the host cannot be reached", { cause: error });
  }
}

/** Return the JSON value of a response, its numbers as they were written. */
export async function json(response) {
  return JSON.parse(await textOf(response), exactly);
}

/** Return the Problem that a response tells of, however it does. */
export async function problemOf(response) {
  const text = await textOf(response);
  try {
    const { code, detail } = JSON.parse(text);
    return new Problem(response.status, String(code), String(detail));
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
    return new Problem(response.status, `http_${response.status}`, response.statusText);
  }
}

async function textOf(response) {
  try {
    return await response.text();
  } catch (error) {
    throw new Unreachable("the answer broke off", { cause: error });
  }
}
