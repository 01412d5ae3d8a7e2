// Times for people: local, and in full where one points at them.

const EXACT = {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
  hourCycle: "h23",
};
const DATE = { year: "numeric", month: "short", day: "numeric" };
const timeOfDay = new Intl.DateTimeFormat(undefined, EXACT);
const toTheMinute = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "full" });
const dayAndTime = new Intl.DateTimeFormat(undefined, { ...DATE, ...EXACT });
const inFull = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

const FORMATS = { exact: timeOfDay, short: toTheMinute, day, dated: dayAndTime };
/** How much of a stamp is the same for ten minutes, in which no day begins in any time zone. */
const TEN_MINUTES_N = "2026-12-01T09:3".length;

/**
 * Return a `<time>` of local time: `exact`, `short`, `dated`, or the `day`. Its title has it in
 * full, and as it is on record.
 */
export function timeElement(recordedAt, format) {
  const date = new Date(recordedAt);
  const element = document.createElement("time");
  element.dateTime = format === "day" ? isoDay(date) : recordedAt;
  if (format !== "day") element.title = `${inFull.format(date)}\n${recordedAt}`;
  element.textContent = FORMATS[format].format(date);
  return element;
}

/** Tell whether two stamps are of the same local day. */
export function isSameDay(one, other) {
  if (one.slice(0, TEN_MINUTES_N) === other.slice(0, TEN_MINUTES_N)) return true;
  return isoDay(new Date(one)) === isoDay(new Date(other));
}

function isoDay(date) {
  const [month, dayOfMonth] = [date.getMonth() + 1, date.getDate()];
  const padded = [month, dayOfMonth].map((each) => String(each).padStart(2, "0"));
  return [date.getFullYear(), ...padded].join("-");
}
