// Shows the session's transcript and follows it. Every text is put in as text, never as markup.
"use strict";

const POLL_MS = 1000;
const transcript = document.getElementById("transcript");
const status = document.getElementById("status");
let lastSequence = 0;
let etag = null;

function textOf(entry) {
  if (entry.kind === "tool") {
    const answer = "error" in entry ? entry.error : entry.result;
    return `${entry.name}(${entry.arguments}) → ${JSON.stringify(answer)}`;
  }
  return entry.kind === "failure" ? `${entry.code}: ${entry.message}` : entry.text;
}

function show(entry) {
  const item = document.createElement("li");
  const label = document.createElement("b");
  const text = document.createElement("span");
  label.textContent = `${entry.kind} · ${entry.turn_id ?? entry.step_id}`;
  text.textContent = textOf(entry);
  item.append(label, text);
  transcript.append(item);
}

function startOver() {
  transcript.replaceChildren();
  lastSequence = 0;
  etag = null;
}

async function follow(sessionId) {
  const headers = etag === null ? {} : { "If-None-Match": etag };
  const path = `/api/v1/sessions/${encodeURIComponent(sessionId)}?after=${lastSequence}`;
  const response = await fetch(path, { headers, cache: "no-store" });
  if (response.status === 304) return;
  if (response.status === 422) return startOver(); // another, shorter session is served now
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  const session = await response.json();
  session.transcript.forEach(show);
  etag = session.last_sequence === lastSequence ? response.headers.get("ETag") : null;
  lastSequence = session.last_sequence;
}

async function run() {
  for (;;) {
    try {
      const health = await (await fetch("/health", { cache: "no-store" })).json();
      const name = document.getElementById("session");
      if (name.textContent !== health.session_id) startOver();
      name.textContent = health.session_id;
      await follow(health.session_id);
      status.textContent = `${health.status} · ${lastSequence} events`;
    } catch (error) {
      status.textContent = `not connected: ${error.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

run();
