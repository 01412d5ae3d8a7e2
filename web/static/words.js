// How events are called, summed up, and dated for people.

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

const SUMMARY_N = 200;

/** Return the text that a chunk adds to an answer: where Chat Completions has it, else "". */
export function chunkText(chunk) {
  const content = chunk?.choices?.[0]?.delta?.content;
  return typeof content === "string" ? content : "";
}

/** Return what an event says, in a line. */
export function summary(event) {
  const line = said(event).slice(0, SUMMARY_N);
  return line.replace(/\s+/gu, " ");
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
        ? JSON.stringify(chunkText(payload.chunk).slice(0, SUMMARY_N))
        : compact(payload.chunk);
    case "assistant_message_committed":
      return payload.message.content || `calls ${callNames(payload.message.tool_calls)}`;
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

/** Return the names of tool calls, each once, as a sentence lists them. */
export function callNames(calls) {
  const names = [...new Set(calls.map((call) => call.name))];
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

function compact(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Return a JSON value in lines for people; a string as it reads. */
export function readable(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** Return a tool call's arguments in lines, or as they stand when they are no JSON. */
export function readableArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text, exactly), null, 2);
  } catch (error) {
    if (error instanceof SyntaxError) return text;
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

const timeOfDay = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
  hourCycle: "h23",
});
const toTheMinute = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const inFull = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const dayAndTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Return a `<time>` of local time; its title has it in full, and as it is on record. */
export function timeElement(recordedAt, { exact = false } = {}) {
  const date = new Date(recordedAt);
  const isToday = date.toDateString() === new Date().toDateString();
  const short = isToday ? toTheMinute : dayAndTime;
  const element = document.createElement("time");
  element.dateTime = recordedAt;
  element.title = `${inFull.format(date)}\n${recordedAt}`;
  element.textContent = (exact ? timeOfDay : short).format(date);
  return element;
}
