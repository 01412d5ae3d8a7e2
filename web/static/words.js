// How events are called and summed up for people.

import { beginning } from "./longtext.js";

/** The seven kinds of event in the order in which a Turn has them, and their short names. */
export const KINDS = new Map([
  ["user_input_accepted", "input"],
  ["model_request_recorded", "request"],
  ["model_chunk_recorded", "chunk"],
  ["assistant_message_committed", "answer"],
  ["tool_execution_started", "tool start"],
  ["tool_execution_completed", "tool end"],
  ["step_failed", "failure"],
]);

/** What a person asked for is no failure to them. */
const CANCELLED = "cancelled";
const SUMMARY_N = 200;

/** Tell whether a failure, as an entry or as a payload, is that somebody stopped the Turn. */
export function isStop({ code }) {
  return code === CANCELLED;
}

/** Return how a tool call ended: its `name`, a word or two, and `tone`, done, failed or stopped. */
export function outcome({ error }) {
  if (error === undefined) return { name: "done", tone: "done" };
  if (error.code === "not_executed") return { name: "not run", tone: "stopped" };
  return { name: error.code === "interrupted" ? "interrupted" : "failed", tone: "failed" };
}

/** Return what kind of event this is: its `name`, a word or two, and `tone`: failed, stopped or "". */
export function kindOf({ type, payload }) {
  if (type === "tool_execution_completed" && "error" in payload) {
    const { name, tone } = outcome(payload);
    return { name: `tool ${name}`, tone };
  }
  if (type === "step_failed" && isStop(payload)) return { name: "stopped", tone: "stopped" };
  return { name: KINDS.get(type) ?? type, tone: "" };
}

/** Return the text that a chunk adds to an answer: where Chat Completions has it, else "". */
export function chunkText(chunk) {
  const content = chunk?.choices?.[0]?.delta?.content;
  return typeof content === "string" ? content : "";
}

/** Return what an event says, in a line. */
export function summary(event) {
  return beginning(said(event), SUMMARY_N).replace(/\s+/gu, " ");
}

function said({ type, payload }) {
  switch (type) {
    case "user_input_accepted":
      return payload.messages.map((message) => message.content).join(" ");
    case "model_request_recorded":
      return `${payload.step_id} · ${payload.route.provider}/${payload.route.model}`;
    case "model_chunk_recorded":
      // A chunk's text begins or ends with a blank as often as not: show that it does.
      return chunkText(payload.chunk)
        ? JSON.stringify(beginning(chunkText(payload.chunk), SUMMARY_N))
        : compact(payload.chunk);
    case "assistant_message_committed":
      return payload.message.content || `Calls ${distinctNames(payload.message.tool_calls).join(", ")}`;
    case "tool_execution_started":
      return `${payload.call.name} ${payload.call.arguments}`;
    case "tool_execution_completed":
      return "error" in payload
        ? `${payload.error.code}: ${payload.error.message}`
        : compact(payload.result);
    case "step_failed":
      return `${payload.code}: ${payload.message}`;
    default:
      return compact(payload);
  }
}

/** Return the names of tool calls, each once. */
export function distinctNames(calls) {
  return [...new Set(calls.map((call) => call.name))];
}

function compact(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Return a tool call's arguments in lines, null when they are no JSON. */
export function readableArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text, exactly), null, 2);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

/**
 * For JSON.parse: keep a number as it was written where a double would show another (2**63,
 * -0.0, 1e5). Browsers that cannot tell how it was written show the double.
 */
export function exactly(_key, value, context) {
  if (typeof value !== "number" || !context?.source || !JSON.rawJSON) return value;
  return String(value) === context.source ? value : JSON.rawJSON(context.source);
}
