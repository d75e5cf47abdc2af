// One queue: live charts, messages, consumers, settings, and the actions on the whole queue.
import { api, live } from "./api.js";
import { age, badge, bytes, clear, count, curlLine, empty, field, h, isNarrow, plural, say, stateLabel, tile } from "./dom.js";
import { Chart } from "./charts.js";
import { send } from "./compose.js";
import { ConsumerList, Times } from "./consumers.js";
import { MessageList } from "./messages.js";
import { settingsForm } from "./settings.js";
import { ask, attempt, confirm, toast } from "./dialogs.js";

const SLOTS = 241;
const STEP = 15000;

export async function queuePage(main, { args: [name], signal }) {
  document.title = `${name} · MiniQ`;
  const [info, me] = await Promise.all([api.queue(name), api.whoami(name)]);
  if (signal.aborted) return;
  const may = (verb) => me.verbs.includes(verb);
  const isDead = [...live.queues.values()].some((q) => q.dead_letter_queue === name) || name.endsWith(".dead");

  // Numbers and charts
  const numbers = [["ready", "ready"], ["leased", "in-flight"], ["delayed", "delayed"], ["dead", "dead letters"], ["oldest", "oldest"], ["bytes", "bytes"], ["consumers", "consumers"]];
  const tiles = h("div", { class: "tiles" }, numbers.map(([, label]) => tile(label, "–")));
  const times = new Times();
  const depth = new Chart("Messages", ["ready", "in-flight", "delayed"], SLOTS, STEP / 1000);
  const flow = new Chart("Messages per second", ["sent", "received", "acked"], SLOTS, STEP / 1000, "rate");
  let shiftedAt = 0;
  const progress = h("p", { class: "note", role: "status" });

  function update() {
    const q = live.queues.get(name);
    if (!q) return;
    const shown = { ready: count(q.ready), leased: count(q.leased), delayed: count(q.delayed), dead: q.dead === null ? "–" : count(q.dead), oldest: q.oldest ? age(q.oldest) : "–", bytes: bytes(q.bytes), consumers: count(q.consumers) };
    numbers.forEach(([id], place) => say(tiles.children[place].firstChild, shown[id]));
    tiles.children[3].classList.toggle("bad", q.dead > 0);
    times.show(q);
    const shift = Date.now() - shiftedAt > STEP;
    if (shift) shiftedAt = Date.now();
    depth.add([q.ready, q.leased, q.delayed], shift);
    flow.add([q.rates.sent, q.rates.received, q.rates.acked], shift);
  }

  async function loadTrends() {
    const { queues: [trend] } = await api.trends({ queue: name, series: "ready,leased,delayed,sent,received,acked", points: 240 });
    if (!trend || signal.aborted) return;
    shiftedAt = 0;
    const { ready, leased, delayed, sent, received, acked } = trend.series;
    depth.set([ready, leased, delayed]);
    flow.set([sent, received, acked]);
  }

  // Messages
  const nothing = (status) => (status || !may("send")
    ? empty(status ? `No ${stateLabel(status)} messages` : "This queue is empty", "Refresh to look again.")
    : empty("This queue is empty", "Send a message here, or from a shell:", curlLine(name, !me.open)));
  const list = new MessageList(name, signal, nothing);
  const states = [["", "All"], ["ready", "Ready"], ["leased", "In-flight"], ["delayed", "Delayed"]];
  const segments = h("div", { class: "segments", role: "group", "aria-label": "State" }, states.map(([value, label]) =>
    h("button", { type: "button", "aria-pressed": String(value === ""), onclick: (event) => {
      for (const button of segments.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      attempt(() => list.show(value));
    } }, label)));
  const search = h("input", { class: "search", type: "search", placeholder: isNarrow() ? "Search messages" : "Search ID, key, headers, error and body  ( / )", "aria-label": "Search messages" });
  const searching = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); attempt(() => list.show(list.status, search.value.trim())); } },
    segments, search, h("button", { type: "submit" }, "Search"), h("button", { type: "button", onclick: () => attempt(() => list.show()) }, "Refresh"));
  search.addEventListener("search", () => { if (!search.value) attempt(() => list.show(list.status, "")); });

  // Settings
  const paused = badge("paused", "delayed");
  paused.hidden = !info.settings.paused;
  let form = settingsForm(info.settings, !may("manage"));
  const settings = h("form", { class: "card", hidden: true, onsubmit: async (event) => {
    event.preventDefault();
    const changes = form.changes();
    if (!Object.keys(changes).length) { toast("No changes to save."); return; }
    const done = await attempt(() => api.configure(name, changes), "Saved.");
    if (!done) return;
    const old = form.node;
    form = settingsForm(done.settings); // others may have changed settings too
    old.replaceWith(form.node);
    paused.hidden = !done.settings.paused;
  } }, h("h2", {}, "Settings"), form.node, may("manage") && h("div", { class: "more" }, h("button", { class: "main", type: "submit" }, "Save settings")));
  const messages = h("div", {}, searching, list.node);
  messages.firstChild.classList.add("row");
  list.node.classList.add("below");
  const consumers = new ConsumerList(name, signal);
  const tabs = h("div", { class: "segments", role: "group", "aria-label": "View" }, [["Messages", messages], ["Consumers", consumers.node], ["Settings", settings]].map(([label, part], place) =>
    h("button", { type: "button", "aria-pressed": String(!place), onclick: (event) => {
      for (const button of tabs.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      for (const panel of [messages, consumers.node, settings]) panel.hidden = panel !== part;
      if (part === consumers.node) consumers.load();
    } }, label)));

  // Actions
  const total = async () => (await api.queue(name)).counts.total;
  async function onSend() {
    const sent = await send(name);
    if (sent) { toast(`Sent ${sent.ids[0]}.`); list.show().catch(() => {}); }
  }
  async function onPurge() {
    const done = await confirm({ title: `Purge ${name}?`, action: "Purge", type: name, submit: () => api.purge(name),
      text: `${plural(await total(), "message")} will be removed, including those in flight. This can't be undone.` });
    if (done) { toast(`Purged ${plural(done.purged, "message")}.`); list.show().catch(() => {}); }
  }
  async function onDelete() {
    const done = await confirm({ title: `Delete ${name}?`, action: "Delete", type: name, submit: () => api.deleteQueue(name),
      text: `The queue, its settings and ${plural(await total(), "message")} will be deleted. This can't be undone.` });
    if (done) { toast(`Deleted ${name}.`); location.hash = "#/"; }
  }
  async function onRedrive() {
    if (await redrive(name, await total())) { list.show().catch(() => {}); watchRedrive(); }
  }
  async function watchRedrive() {
    for (;;) {
      const { redrive: running } = await api.queue(name).catch(() => ({}));
      say(progress, running?.running ? `Redrive in progress: ${count(running.moved)} moved.` : "");
      if (!running?.running || signal.aborted) return;
      await new Promise((done) => { setTimeout(done, 1000); });
    }
  }

  clear(main,
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/" }, "Queues")), h("h1", {}, name),
      isDead && badge("dead-letter queue", "dead"), paused, !may("manage") && badge("read-only"),
      h("div", { class: "actions" },
        may("send") && h("button", { type: "button", class: "main", "data-key": "send", onclick: onSend }, "Send"),
        isDead && h("a", { class: "button", href: `#/dead/${encodeURIComponent(name)}` }, "Group by reason"),
        isDead && may("manage") && h("button", { type: "button", onclick: onRedrive }, "Redrive"),
        may("manage") && h("button", { type: "button", class: "bad", onclick: onPurge }, "Purge"),
        may("manage") && name !== "default" && h("button", { type: "button", class: "bad", onclick: onDelete }, "Delete"))),
    progress, tiles, times.node, h("div", { class: "two" }, depth.node, flow.node), h("div", {}, tabs), messages, consumers.node, settings);
  if (info.redrive?.running) watchRedrive();
  live.addEventListener("stats", update, { signal });
  await loadTrends().catch(() => {});
  if (live.known) update();
  await list.show();
}

/** Ask for the redrive options, then redrive the whole queue or only `ids`. */
export function redrive(name, amount, ids) {
  const to = h("input", { autocomplete: "off", placeholder: "source queue" });
  const speed = h("input", { type: "number", min: 0, step: "any", placeholder: "no limit" });
  return ask({
    title: `Redrive ${plural(amount, "message")}?`, action: "Redrive",
    body: [h("p", { class: "note" }, "Messages return to their source queue, and their receive count restarts at 0."),
      h("div", { class: "fields" }, field("Destination queue", to), !ids && field("Max messages per second", speed))],
    submit: async () => {
      const body = {};
      if (ids) body.ids = ids;
      if (to.value.trim()) body.to = to.value.trim();
      if (!ids && speed.value.trim()) body.rate = Number(speed.value);
      const done = await api.redrive(name, body);
      toast(done.running ? "Redrive started." : `Moved ${plural(done.moved, "message")}${done.skipped ? `, skipped ${done.skipped}` : ""}.`);
      return done;
    },
  });
}
