// The session page: the session followed, its transcript and timeline beside each other.

import { Address } from "./address.js";
import { Composer } from "./composer.js";
import { byId, setText } from "./dom.js";
import { Follower } from "./follow.js";
import { beginning } from "./longtext.js";
import { Payload } from "./payload.js";
import { Session } from "./session.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";
import { spelled } from "./visible.js";
import { isStop } from "./words.js";

const SPOKEN_N = 400;

const session = new Session();
const follower = new Follower(session, told);
const transcript = new Transcript(session, (sequence) => address.choose(sequence, { isLink: true }));
const payload = new Payload(session, {
  showEntry(sequence) {
    showView("transcript");
    transcript.show(sequence);
  },
  leave: () => address.leave(),
  closed(hadFocus) {
    timeline.closed();
    if (hadFocus) timeline.focus();
  },
  say: (words) => setText("spoken", words),
});
const timeline = new Timeline(session, {
  choose: (sequence, isStep) => address.choose(sequence, { isStep }),
  leave: () => address.leave(),
});
const address = new Address(session, {
  open(sequence, { isLink = false, isAwaited = false }) {
    if (isLink) showView("timeline");
    payload.open(session.events[sequence - 1]); // it takes room from the list
    timeline.show(sequence, isLink || isAwaited ? "middle" : "nearest");
    if (isLink) timeline.focus();
  },
  close: () => payload.close(),
  missing(words) {
    byId("missing").hidden = words === null;
    if (words === null) return;
    showView("timeline");
    setText("missing", words);
    setText("spoken", words);
  },
  get view() {
    return document.body.dataset.view;
  },
  set view(name) {
    showView(name);
  },
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

// --- what is told of the Host and the session ---------------------------------------------------

function told({ state, detail, notice }) {
  const isLost = state === "lost";
  document.body.dataset.state = state;
  setText("state", isLost ? `Not connected: ${spelled(detail)}. Trying again.` : runningState());
  if (notice) setText("spoken", notice);
  byId("replaced").hidden = byId("replaced").hidden && !notice;
  composer.update();
}

function runningState() {
  return session.turn === null ? "Connected" : `Running ${session.turn.id}`;
}

function spoken(entry) {
  if (entry.kind === "failure") {
    return isStop(entry) ? "The turn was stopped." : `Failure: ${entry.code}: ${entry.message}`;
  }
  if (entry.kind !== "assistant" || entry.tool_calls.length > 0) return null;
  return `Assistant: ${entry.text}`;
}

session.onChange(({ isNew, isFirst, entriesN }) => {
  if (isNew) {
    setText("session", session.id ?? "");
    document.title = session.id === null ? "sessiond" : `${session.id} · sessiond`;
  } else if (isFirst) {
    beginWriting();
  } else {
    const last = session.entries.slice(entriesN).map(spoken).findLast((text) => text !== null);
    if (last) setText("spoken", spelled(beginning(last, SPOKEN_N)));
  }
});

/** In a session without a word there is one thing to do; a touch screen would raise its keys. */
function beginWriting() {
  const isRoomy = matchMedia("(min-width: 60rem) and (hover: hover)").matches;
  if (session.lastSequence > 0 || location.hash !== "" || !isRoomy) return;
  if (document.activeElement === document.body) byId("message").focus();
}

byId("replaced-close").addEventListener("click", () => {
  byId("replaced").hidden = true;
  byId("message").focus();
});

showView("transcript");
follower.run();
