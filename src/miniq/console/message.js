// One message: its fields, body, headers and history, and the actions on it.
import { api } from "./api.js";
import { age, badge, bytes, clear, download, firstLine, h, holder, moment, plural, queueLink, stateLabel, until } from "./dom.js";
import { TEXTS, edit } from "./compose.js";
import { attempt, confirm, toast } from "./dialogs.js";

const SHOWN = 64 * 1024;
const WORDS = { sent: "Sent", received: "Received", acked: "Acked", released: "Released", failed: "Failed", expired: "Expired", dead: "Dead-lettered",
  edited: "Edited", purged: "Removed", redriven: "Redriven" };

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

  const facts = [["ID", h("span", { class: "mono" }, message.id)], ["Queue", h("a", { href: queueLink(queue) }, queue)], ["Sent", [moment(message.sent_at), ` (${age(message.sent_at)} ago)`]],
    ["Receives", String(message.receives)], ["Priority", String(message.priority)], ["Content type", message.content_type],
    leased && ["Consumer", holder(message)],
    message.status === "delayed" && ["Ready", until(message.visible_at)], message.expires_at && ["Expires", moment(message.expires_at)],
    ...Object.entries(TEXTS).filter(([name]) => message[name]).map(([name, label]) => [label, h("bdi", {}, message[name])]),
    message.dead && ["Dead-lettered", [moment(message.dead.at), ` after ${plural(message.dead.receives, "receive")} in `, h("a", { href: queueLink(message.dead.origin) }, message.dead.origin), `: ${message.dead.reason}`]],
  ].filter(Boolean);
  const historyNode = h("div", {}, h("p", { class: "note" }, "Loading…"));
  clear(main,
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/" }, "Queues"), " / ", h("a", { href: queueLink(queue) }, queue)),
      h("h1", {}, "Message"), badge(stateLabel(message.status), message.status), message.dead && badge("dead letter", "dead"),
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
  clear(historyNode, events.length
    ? h("ol", { class: "timeline" }, events.map((event) => h("li", {}, h("b", {}, WORDS[event.event] ?? event.event), " ", h("span", { class: "note" }, moment(event.at),
      event.consumer && ` by ${event.consumer}`, event.reason && `, ${event.reason}`, event.error && h("bdi", {}, `: ${firstLine(event.error)}`), event.wait_ms !== undefined && `, waited ${ms(event.wait_ms)}`,
      event.held_ms !== undefined && `, held ${ms(event.held_ms)}`))))
    : h("p", { class: "note" }, "No history recorded. Turn on history in the queue's settings to record events from then on."));
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

const ms = (n) => (n < 1000 ? `${n.toFixed(0)} ms` : `${(n / 1000).toFixed(1)} s`);

/** Why the message failed last; of a dead letter, why it died, unless it has failed since. */
function errorCard(message) {
  const error = message.error ?? message.dead?.error;
  return error && h("section", { class: "card" }, h("h2", {}, "Last error"), h("pre", { class: "body", tabIndex: 0, dir: "auto" }, error));
}

function bodyCard(message, title = "Body") {
  const { text, kind, raw, name } = read(message);
  const pre = h("pre", { class: "body", tabIndex: 0, dir: "auto" }, text.length > SHOWN ? text.slice(0, SHOWN) : text);
  const rest = text.length > SHOWN && h("p", { class: "note" }, `Showing the first ${bytes(SHOWN)} of ${bytes(text.length)}. `,
    h("button", { type: "button", onclick: (event) => { pre.textContent = text; event.currentTarget.parentNode.remove(); } }, "Show all"));
  return h("section", { class: "card" }, h("div", { class: "row" }, h("h2", {}, `${title} (${kind})`),
    h("button", { type: "button", class: "plain", onclick: () => navigator.clipboard.writeText(text).then(() => toast("Copied.")) }, "Copy"),
    h("button", { type: "button", class: "plain", onclick: () => download(raw, name) }, "Download")), pre, rest);
}

/** A body as display text, and its raw bytes. */
function read(message) {
  if (message.body === undefined) {
    const raw = Uint8Array.from(atob(message.data ?? ""), (letter) => letter.charCodeAt(0));
    return { text: dump(raw.subarray(0, 16384)), kind: `binary, ${bytes(raw.length)}`, raw, name: `${message.id}.bin` };
  }
  const json = message.content_type === "application/json" || /\+json(;|$)/.test(message.content_type);
  const text = json ? JSON.stringify(message.body, null, 2) : message.body;
  const raw = new TextEncoder().encode(json ? JSON.stringify(message.body) : text);
  return { text, kind: `${json ? "JSON" : "text"}, ${bytes(raw.length)}`, raw, name: `${message.id}.${json ? "json" : "txt"}` };
}

/** Bytes as a hex dump. */
function dump(raw) {
  const rows = [];
  for (let at = 0; at < raw.length; at += 16) {
    const row = raw.subarray(at, at + 16);
    const hex = [...row].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    rows.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${[...row].map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")}`);
  }
  return rows.join("\n");
}
