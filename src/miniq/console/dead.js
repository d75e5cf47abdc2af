// Dead letters: the dead-letter queues, and one of them grouped by reason and error, with redrive and delete of a selection.
import { api, live } from "./api.js";
import { clear, count, empty, exact, firstLine, h, plural, queueLink } from "./dom.js";
import { messageHead, messageRow } from "./messages.js";
import { redrive } from "./queue.js";
import { confirm, toast } from "./dialogs.js";

const GROUPED = 2000; // messages read for grouping
const SHOWN = 100;

const deadQueues = () => {
  const origins = new Map();
  for (const q of live.queues.values()) if (q.dead_letter_queue) origins.set(q.dead_letter_queue, [...(origins.get(q.dead_letter_queue) ?? []), q.name]);
  for (const name of live.queues.keys()) if (name.endsWith(".dead") && !origins.has(name)) origins.set(name, []);
  return [...origins].filter(([name]) => live.queues.has(name)).sort(([a], [b]) => live.queues.get(b).total - live.queues.get(a).total || (a < b ? -1 : 1));
};

export async function deadPage(main, { args: [name], signal }) {
  document.title = "Dead letters · MiniQ";
  if (name) { await deadLetters(main, name, signal); return; }
  const body = h("tbody");
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Dead-letter queues"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Dead-letter queue"), h("th", { scope: "col" }, "Source queue"), h("th", { class: "num", scope: "col" }, "Messages"))), body);
  const nothing = h("div");
  clear(main, h("div", { class: "head" }, h("h1", {}, "Dead letters")),
    h("p", { class: "note" }, "Messages that a consumer rejects, or that reach their queue's max_receives without an ack, are moved to a dead-letter queue."),
    h("div", { class: "card flush" }, table, nothing));
  const show = () => {
    const found = deadQueues();
    table.hidden = !found.length;
    clear(nothing, live.known && !found.length && empty("No dead-letter queues", "A dead-letter queue is created when the first message dies, or with the setting that says when:",
      `curl -X PUT ${location.origin}/v1/queues/emails -d '{"max_receives": 5}'`));
    clear(body, found.map(([dead, from]) => h("tr", {},
      h("td", { class: "name" }, h("a", { href: `#/dead/${encodeURIComponent(dead)}` }, dead)),
      h("td", { class: "spot", "data-label": "Source queue" }, from.map((one, place) => [place ? ", " : "", h("a", { href: queueLink(one) }, one)])),
      h("td", { class: live.queues.get(dead).total ? "num bad" : "num zero", "data-label": "Messages" }, count(live.queues.get(dead).total)))));
  };
  let shown = "";
  const changed = () => {
    const state = deadQueues().map(([dead]) => `${dead} ${live.queues.get(dead).total}`).join();
    if (state !== shown || !live.queues.size) { shown = state; show(); }
  };
  live.addEventListener("stats", changed, { signal });
  show();
}

async function deadLetters(main, name, signal) {
  document.title = `${name} · MiniQ`;
  const me = await api.whoami(name);
  const may = me.verbs.includes("manage");
  const chosen = new Set();
  const groups = h("div", { class: "groups" });
  const summary = h("p", { class: "note", role: "status" }, "Loading…");
  const redriveButton = may && h("button", { type: "button", class: "main", disabled: true, onclick: onRedrive }, "Redrive selected");
  const deleteButton = may && h("button", { type: "button", class: "bad", disabled: true, onclick: onDelete }, "Delete selected");
  clear(main, h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/dead" }, "Dead letters")), h("h1", {}, name),
    h("div", { class: "actions" }, redriveButton, deleteButton, h("a", { class: "button", href: queueLink(name) }, "Queue"))), summary, groups);

  const updateButtons = () => {
    if (!may) return;
    redriveButton.disabled = deleteButton.disabled = !chosen.size;
    redriveButton.textContent = chosen.size ? `Redrive ${plural(chosen.size, "message")}` : "Redrive selected";
    deleteButton.textContent = chosen.size ? `Delete ${plural(chosen.size, "message")}` : "Delete selected";
  };

  async function onRedrive() {
    const ids = [...chosen];
    if (ids.length > 1000) { toast("At most 1,000 messages at once. Select fewer, or redrive the whole queue from its page.", true); return; }
    if (await redrive(name, ids.length, ids)) load();
  }
  async function onDelete() {
    const ids = [...chosen];
    if (await confirm({ title: `Delete ${plural(ids.length, "message")}?`, text: "This can't be undone.", action: "Delete",
      submit: async () => { for (const id of ids) await api.remove(name, id); } })) { toast(`Deleted ${plural(ids.length, "message")}.`); load(); }
  }

  async function load() {
    chosen.clear();
    updateButtons();
    const byReason = new Map();
    let after;
    let looked = 0;
    do {
      const page = await api.peek(name, { after, limit: 500 }, signal);
      for (const message of page.messages) {
        const error = message.dead?.error ? `: ${firstLine(message.dead.error)}` : "";
        const reason = message.dead ? `${message.dead.reason}, from ${message.dead.origin}${error}` : "sent directly to this queue";
        byReason.set(reason, [...(byReason.get(reason) ?? []), message]);
      }
      looked += page.messages.length;
      after = page.next;
    } while (after && looked < GROUPED);
    summary.textContent = looked ? `${plural(looked, "message")} in ${plural(byReason.size, "group")}${after ? `; only the first ${exact(GROUPED)} messages are grouped` : ""}.` : "";
    clear(groups, looked ? [...byReason].sort(([, a], [, b]) => b.length - a.length).map(([reason, messages]) => group(reason, messages))
      : h("div", { class: "card" }, empty("No dead letters", "This queue is empty.")));
  }

  function group(reason, messages) {
    const boxes = [];
    const select = (box, message) => { if (box.checked) chosen.add(message.id); else chosen.delete(message.id); };
    const all = may && h("input", { type: "checkbox", "aria-label": `Select all: ${reason}`, onchange: () => {
      boxes.forEach((box) => { box.checked = all.checked; });
      messages.forEach((message) => select(all, message));
      updateButtons();
    } });
    const rows = messages.slice(0, SHOWN).map((message) => {
      if (!may) return messageRow(name, message);
      const box = h("input", { type: "checkbox", "aria-label": `Select ${message.id}`, onchange: () => { select(box, message); all.checked = messages.every(({ id }) => chosen.has(id)); updateButtons(); } });
      boxes.push(box);
      return messageRow(name, message, h("td", { class: "bare" }, box));
    });
    return h("section", { class: "card flush below" }, h("div", { class: "card-head row" }, all, h("h2", {}, reason), h("span", { class: "badge dead" }, exact(messages.length))),
      h("div", { class: "scroll" }, h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, reason), messageHead(may && h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Select"))), h("tbody", {}, rows))),
      messages.length > SHOWN && h("p", { class: "more note" }, `${exact(messages.length - SHOWN)} more not shown; selecting all includes them`));
  }

  await load();
}
