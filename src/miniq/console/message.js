// One message: all that is known of it, its body whatever it is, its history, and what can be done with it.
import { api } from "./api.js";
import { age, badge, bytes, clear, download, h, moment, queueLink, until } from "./dom.js";
import { edit } from "./compose.js";
import { attempt, confirm, toast } from "./talk.js";

const SHOWN = 64 * 1024;
const WORDS = { sent: "Sent", received: "Received", acked: "Acked", released: "Released", expired: "Expired", dead: "Became a dead letter",
  edited: "Edited", purged: "Removed", redriven: "Redriven" };

export async function messagePage(main, { args: [queue, id], signal }) {
  document.title = `Message · ${queue} · MiniQ`;
  const [message, me] = await Promise.all([api.get(queue, id), api.whoami(queue)]);
  if (signal.aborted) return;
  const may = (verb) => me.verbs.includes(verb);
  const again = () => messagePage(main, { args: [queue, id], signal }).catch((error) => toast(error.message, true));
  const leased = message.status === "leased";

  async function onEdit() { if (await edit(queue, message)) { toast("Saved."); again(); } }
  async function onDelete() {
    if (await confirm({ title: "Delete this message?", text: "It is removed without having been processed. This cannot be undone.", action: "Delete",
      submit: () => api.remove(queue, id) })) { toast("Deleted."); location.hash = queueLink(queue); }
  }
  async function onRelease() {
    if (await confirm({ title: "Take it from its consumer?", action: "Release", submit: () => api.release(queue, id),
      text: `${message.consumer ?? "A consumer"} holds it. It becomes ready at once; the consumer can no longer ack it, and another may do the work a second time.` })) {
      toast("Released."); again();
    }
  }
  async function onRedrive() {
    await attempt(() => api.redrive(queue, { ids: [id] }), (done) => (done.moved ? `Back in ${message.dead.origin}.` : "It had nowhere to go."));
    location.hash = queueLink(queue);
  }

  const facts = [["Id", h("span", { class: "mono" }, message.id)], ["Queue", h("a", { href: queueLink(queue) }, queue)], ["Sent", [moment(message.sent_at), ` (${age(message.sent_at)} ago)`]],
    ["Receives", String(message.receives)], ["Priority", String(message.priority)], ["Content type", message.content_type],
    leased && ["Held by", `${message.consumer ?? "a consumer without a name"}${message.lease_until ? `, lease ends ${until(message.lease_until)}` : ", in a claim"}`],
    message.status === "delayed" && ["Ready", until(message.visible_at)], message.expires_at && ["Expires", moment(message.expires_at)],
    ...["key", "recipient", "group", "dedup_id"].filter((name) => message[name]).map((name) => [{ key: "Key", recipient: "Recipient", group: "Group", dedup_id: "Dedup id" }[name], h("bdi", {}, message[name])]),
    message.dead && ["Dead since", [moment(message.dead.at), ` after ${message.dead.receives} receives in `, h("a", { href: queueLink(message.dead.origin) }, message.dead.origin), `: ${message.dead.reason}`]],
  ].filter(Boolean);
  const story = h("div", {}, h("p", { class: "note" }, "Looking…"));
  clear(main,
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/" }, "Queues"), " / ", h("a", { href: queueLink(queue) }, queue)),
      h("h1", {}, "Message"), badge(message.status), message.dead && badge("dead letter", "dead"),
      h("div", { class: "actions" },
        may("manage") && !leased && h("button", { type: "button", onclick: onEdit }, "Edit"),
        may("manage") && leased && message.lease_until && h("button", { type: "button", onclick: onRelease }, "Release"),
        may("manage") && message.dead && h("button", { type: "button", onclick: onRedrive }, "Redrive"),
        may("manage") && !leased && h("button", { type: "button", class: "bad", onclick: onDelete }, "Delete"))),
    h("section", { class: "card" }, h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
    bodyCard(message),
    message.headers && h("section", { class: "card" }, h("h2", {}, "Headers"), h("dl", { class: "facts" },
      Object.entries(message.headers).map(([name, value]) => [h("dt", { class: "mono" }, h("bdi", {}, name)), h("dd", { class: "mono" }, h("bdi", {}, value))]))),
    h("section", { class: "card" }, h("h2", {}, "History"), story));

  const queues = [queue, ...(message.dead && message.dead.origin !== queue ? [message.dead.origin] : [])];
  const told = await Promise.all(queues.map((one) => api.history({ id, queue: one, limit: 200 }, signal).catch(() => ({ events: [] }))));
  const events = told.flatMap((page) => page.events).sort((a, b) => a.offset - b.offset);
  clear(story, events.length
    ? h("ol", { class: "story" }, events.map((event) => h("li", {}, h("b", {}, WORDS[event.event] ?? event.event), " ", h("span", { class: "note" }, moment(event.at),
      event.consumer && ` by ${event.consumer}`, event.reason && `, ${event.reason}`, event.wait_ms !== undefined && `, waited ${ms(event.wait_ms)}`,
      event.held_ms !== undefined && `, held ${ms(event.held_ms)}`))))
    : h("p", { class: "note" }, "Nothing is written down of it. Turn on the history of this queue in its settings to see what happens to messages from then on."));
}

const ms = (n) => (n < 1000 ? `${n.toFixed(0)} ms` : `${(n / 1000).toFixed(1)} s`);

function bodyCard(message) {
  const { text, kind, raw, name } = read(message);
  const pre = h("pre", { class: "body", tabIndex: 0, dir: "auto" }, text.length > SHOWN ? text.slice(0, SHOWN) : text);
  const rest = text.length > SHOWN && h("p", { class: "note" }, `The first ${bytes(SHOWN)} of ${bytes(text.length)} are shown. `,
    h("button", { type: "button", onclick: (event) => { pre.textContent = text; event.currentTarget.parentNode.remove(); } }, "Show all"));
  return h("section", { class: "card" }, h("div", { class: "row" }, h("h2", {}, `Body, ${kind}`),
    h("button", { type: "button", class: "plain", onclick: () => navigator.clipboard.writeText(text).then(() => toast("Copied.")) }, "Copy"),
    h("button", { type: "button", class: "plain", onclick: () => download(raw, name) }, "Download")), pre, rest);
}

/** A body as text for people, and its bytes. */
function read(message) {
  if (message.body === undefined) {
    const raw = Uint8Array.from(atob(message.data ?? ""), (letter) => letter.charCodeAt(0));
    return { text: dump(raw.subarray(0, 16384)), kind: `${bytes(raw.length)} of data`, raw, name: `${message.id}.bin` };
  }
  const json = message.content_type === "application/json" || /\+json(;|$)/.test(message.content_type);
  const text = json ? JSON.stringify(message.body, null, 2) : message.body;
  const raw = new TextEncoder().encode(json ? JSON.stringify(message.body) : text);
  return { text, kind: `${bytes(raw.length)} of ${json ? "JSON" : "text"}`, raw, name: `${message.id}.${json ? "json" : "txt"}` };
}

/** Bytes as hex and letters. */
function dump(raw) {
  const rows = [];
  for (let at = 0; at < raw.length; at += 16) {
    const row = raw.subarray(at, at + 16);
    const hex = [...row].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    rows.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${[...row].map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")}`);
  }
  return rows.join("\n");
}
