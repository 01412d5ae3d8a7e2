// The session page: the session followed, its transcript and timeline beside each other.

import { Composer } from "./composer.js";
import { byId } from "./dom.js";
import { Follower } from "./follow.js";
import { Payload } from "./payload.js";
import { Session } from "./session.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";

const SPOKEN_N = 400;

const session = new Session();
const follower = new Follower(session, told);
const transcript = new Transcript(session, showEvent);
const payload = new Payload(session, {
  showEntry(sequence) {
    showView("transcript");
    transcript.show(sequence);
  },
  closed(hadFocus) {
    timeline.closed();
    if (hadFocus) timeline.focus();
  },
});
const timeline = new Timeline(session, {
  open: (event) => payload.open(event),
  close: () => payload.close(),
});
const composer = new Composer(session, follower, () => transcript.goToEnd());

// --- which of the two views is seen, where there is room for one --------------------------------

function showView(name) {
  document.body.dataset.view = name;
  for (const view of ["transcript", "timeline"]) {
    byId(`view-${view}`).setAttribute("aria-pressed", String(view === name));
  }
}

for (const view of ["transcript", "timeline"]) {
  byId(`view-${view}`).addEventListener("click", () => showView(view));
}

function showEvent(sequence) {
  showView("timeline");
  timeline.show(sequence);
  timeline.focus();
}

/** Show the event that the address names, if it names one. */
function showNamed() {
  const named = /^#event-([1-9][0-9]{0,15})$/u.exec(location.hash);
  if (named !== null) showEvent(Number(named[1]));
}

addEventListener("hashchange", showNamed);

// --- what is told of the Host and the session ---------------------------------------------------

function told({ state, detail, notice }) {
  const isLost = state === "lost";
  document.body.dataset.state = state;
  setText("state", isLost ? `Not connected: ${detail}. Trying again.` : runningState());
  if (notice) setText("spoken", notice);
  byId("replaced").hidden = byId("replaced").hidden && !notice;
  composer.update();
}

function runningState() {
  return session.turn === null ? "Connected" : `Running ${session.turn.id}`;
}

/** Set a text only when it is another: what is read aloud is not repeated. */
function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function spoken(entry) {
  if (entry.kind === "failure") return `Failure: ${entry.code}: ${entry.message}`;
  if (entry.kind !== "assistant" || entry.tool_calls.length > 0) return null;
  return `Assistant: ${entry.text}`;
}

session.onChange(({ isNew, isFirst, entriesN }) => {
  if (isNew) {
    setText("session", session.id ?? "");
    document.title = session.id === null ? "sessiond" : `${session.id} · sessiond`;
  } else if (isFirst) {
    showNamed();
  } else {
    const last = session.entries.slice(entriesN).map(spoken).findLast((text) => text !== null);
    if (last) setText("spoken", last.slice(0, SPOKEN_N));
  }
});

byId("replaced-close").addEventListener("click", () => {
  byId("replaced").hidden = true;
  byId("message").focus();
});

showView("transcript");
follower.run();
