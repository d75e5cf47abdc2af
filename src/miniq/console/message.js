// One message: its fields, body, headers and history, and the actions on it.
import { api } from "./api.js";
import { age, badge, brief, clear, day, firstLine, h, holder, moment, now, plural, queueLink, stateLabel, timeOfDay, until } from "./dom.js";
import { bodyCard } from "./body.js";
import { taskLine, taskOf } from "./tasks.js";
import { TEXTS, edit } from "./compose.js";
import { attempt, confirm, toast } from "./dialogs.js";

const WORDS = { sent: "Sent", received: "Received", acked: "Acked", released: "Released", failed: "Failed", expired: "Expired", dead: "Dead-lettered",
  edited: "Edited", purged: "Removed", redriven: "Redriven", published: "Published" };

export async function messagePage(main, { args: [queue, id], signal }) {
  document.title = `Message · ${queue} · MiniQ`;
  const [message, me] = await Promise.all([api.get(queue, id).catch((error) => finished(queue, id, error)), api.whoami(queue)]);
  if (signal.aborted) return;
  if (message.finished_at) return finishedPage(main, queue, message, signal);
  const may = (verb) => me.verbs.includes(verb);
  const again = () => messagePage(main, { args: [queue, id], signal }).catch((error) => toast(error.message, true));
  const leased = message.status === "leased";

  async function onEdit() { if (await edit(queue, message)) { toast("Saved."); again(); } }
  async function onDelete() {
    if (await confirm({ title: "Delete this message?", text: "The message is removed without being processed. This can't be undone.", action: "Delete",
      submit: () => api.remove(queue, id) })) { toast("Deleted."); location.hash = queueLink(queue); }
  }
  async function onRelease() {
    if (await confirm({ title: "Release this message?", action: "Release", submit: () => api.release(queue, id),
      text: `${message.consumer ?? "A consumer"} holds the lease. The message becomes ready at once; that consumer can no longer ack it, and another may repeat the work.` })) {
      toast("Released."); again();
    }
  }
  async function onRedrive() {
    await attempt(() => api.redrive(queue, { ids: [id] }), (done) => (done.moved ? `Moved back to ${message.dead.origin}.` : "Not moved: the message has changed or has no source queue."));
    location.hash = queueLink(queue);
  }

  const task = taskOf(message);
  const facts = [["ID", h("span", { class: "mono" }, message.id)], ["Queue", h("a", { href: queueLink(queue) }, queue)], ["Sent", [moment(message.sent_at), ` (${age(message.sent_at)} ago)`]],
    task && [`${task.kind} task`, h("span", { class: "mono" }, taskLine(task))], task?.eta && ["ETA", moment(task.eta)], task?.retries > 0 && ["Retries", String(task.retries)],
    ["Receives", String(message.dead?.receives ?? message.receives)], ["Priority", String(message.priority)], ["Content type", message.content_type],
    leased && ["Consumer", holder(message)],
    message.status === "delayed" && ["Ready", until(message.visible_at)], message.expires_at && ["Expires", moment(message.expires_at)],
    ...Object.entries(TEXTS).filter(([name]) => message[name]).map(([name, label]) => [label, h("bdi", {}, message[name])]),
    message.dead && ["Dead-lettered", [moment(message.dead.at), ` after ${plural(message.dead.receives, "receive")} in `, h("a", { href: queueLink(message.dead.origin) }, message.dead.origin), `: ${message.dead.reason}`]],
  ].filter(Boolean);
  const historyNode = h("div", {}, h("p", { class: "note" }, "Loading…"));
  clear(main,
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/" }, "Queues"), " / ", h("a", { href: queueLink(queue) }, queue)),
      h("h1", {}, "Message"), !(message.dead && message.status === "ready") && badge(stateLabel(message.status), message.status), message.dead && badge("dead letter", "dead"),
      h("div", { class: "actions" },
        may("manage") && !leased && h("button", { type: "button", onclick: onEdit }, "Edit"),
        may("manage") && leased && message.lease_until && h("button", { type: "button", onclick: onRelease }, "Release"),
        may("manage") && message.dead && h("button", { type: "button", onclick: onRedrive }, "Redrive"),
        may("manage") && !leased && h("button", { type: "button", class: "bad", onclick: onDelete }, "Delete"))),
    h("section", { class: "card" }, h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
    errorCard(message),
    bodyCard(message),
    message.headers && h("section", { class: "card" }, h("h2", {}, "Headers"), h("dl", { class: "facts" },
      Object.entries(message.headers).map(([name, value]) => [h("dt", { class: "mono" }, h("bdi", {}, name)), h("dd", { class: "mono" }, h("bdi", {}, value))]))),
    h("section", { class: "card" }, h("h2", {}, "History"), historyNode));

  const queues = [queue, ...(message.dead && message.dead.origin !== queue ? [message.dead.origin] : [])];
  await showHistory(historyNode, queues, id, signal);
}

async function showHistory(historyNode, queues, id, signal) {
  const pages = await Promise.all(queues.map((one) => api.history({ id, queue: one, limit: 200 }, signal).catch(() => ({ events: [] }))));
  const events = pages.flatMap((page) => page.events).sort((a, b) => a.offset - b.offset);
  clear(historyNode, events.length ? [life(events), timeline(events)]
    : h("p", { class: "note" }, "No history recorded. Turn on history in the queue's settings to record events from then on."));
}

const KINDS = { sent: "waits", received: "works", failed: "retries", released: "waits", expired: "waits", redriven: "waits", edited: "waits", dead: "dead" };
const LABELS = { waits: "waiting", works: "in progress", retries: "waiting after a failure", dead: "dead" };

/** The life of a message as a bar: how long it waited and was worked on, to scale. */
function life(events) {
  const ends = events.slice(1).map(({ at }) => Date.parse(at));
  if (KINDS[events.at(-1).event]) ends.push(now()); // it still lives
  const parts = ends.map((end, place) => ({ kind: KINDS[events[place].event] ?? "waits", seconds: (end - Date.parse(events[place].at)) / 1000 })).filter(({ seconds }) => seconds > 0);
  const total = parts.reduce((so, { seconds }) => so + seconds, 0);
  if (!total) return null;
  const sums = new Map();
  for (const { kind, seconds } of parts) sums.set(kind, (sums.get(kind) ?? 0) + seconds);
  const bar = h("div", { class: "life", role: "img", "aria-label": `Life: ${[...sums].map(([kind, seconds]) => `${brief(seconds)} ${LABELS[kind]}`).join(", ")}` },
    parts.map(({ kind, seconds }) => { const part = h("i", { class: kind, title: `${brief(seconds)} ${LABELS[kind]}` }); part.style.flexGrow = seconds / total; return part; }));
  return [bar, h("p", { class: "legend" }, [...sums].map(([kind, seconds]) => h("span", { class: kind }, h("i"), `${brief(seconds)} ${LABELS[kind]}`)))];
}

/** Its events, each with the time since the one before; the date once for each day. */
function timeline(events) {
  let date = "";
  return h("ol", { class: "timeline" }, events.map((event, place) => {
    const own = day(event.at);
    const heading = own !== date && h("div", { class: "note" }, own);
    date = own;
    const since = place && (Date.parse(event.at) - Date.parse(events[place - 1].at)) / 1000;
    return h("li", { class: KINDS[event.event] ?? "" }, heading, timeOfDay(event.at), " ", h("b", {}, WORDS[event.event] ?? event.event), h("span", { class: "note" },
      event.consumer && [" by ", h("bdi", {}, event.consumer)], event.reason && `, ${event.reason}`, event.wait_ms !== undefined ? `, waited ${brief(event.wait_ms / 1000)}` : event.held_ms !== undefined ? `, held ${brief(event.held_ms / 1000)}` : since ? `, ${brief(since)} later` : ""),
    event.error && h("div", { class: "error" }, h("bdi", {}, firstLine(event.error))));
  }));
}

/** How a message that has left its queue was finished, where that is kept; otherwise the error says that there is none. */
async function finished(queue, id, error) {
  const result = error.code === "message_not_found" && await api.result(queue, id).catch(() => null);
  if (!result?.finished_at) throw error;
  return result;
}

async function finishedPage(main, queue, result, signal) {
  const historyNode = h("div", {}, h("p", { class: "note" }, "Loading…"));
  const done = result.status === "done";
  clear(main,
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/" }, "Queues"), " / ", h("a", { href: queueLink(queue) }, queue)),
      h("h1", {}, "Message"), badge(result.status, done ? "ready" : "dead")),
    h("section", { class: "card" }, h("dl", { class: "facts" }, h("dt", {}, "ID"), h("dd", { class: "mono" }, result.id),
      h("dt", {}, done ? "Done" : "Dead-lettered"), h("dd", {}, moment(result.finished_at)))),
    errorCard(result),
    result.result !== undefined && bodyCard({ id: result.id, body: result.result, content_type: "application/json" }, "Result"),
    h("section", { class: "card" }, h("h2", {}, "History"), historyNode));
  await showHistory(historyNode, [queue], result.id, signal);
}

/** Why the message failed last; of a dead letter, why it died, unless it has failed since. */
function errorCard(message) {
  const error = message.error ?? message.dead?.error;
  return error && h("section", { class: "card" }, h("h2", {}, "Last error"), h("pre", { class: "body", tabIndex: 0, dir: "auto" }, error));
}
