// Dead letters: the dead-letter queues, and one of them in groups by error and origin, with redrive, edit and discard.
import { api, live } from "./api.js";
import { age, clear, count, covers, curl, empty, exact, firstLine, h, isKeyed, pattern, plural, previews, python, queueLink } from "./dom.js";
import { deadDetails, deadHead, deadRow } from "./messages.js";
import { Selection } from "./selection.js";
import { redrive } from "./redrive.js";
import { edit } from "./compose.js";
import { attempt } from "./dialogs.js";
import { REASONS, deathOf, origins } from "./words.js";

const GROUPED = 2000; // messages that are read to show groups, and that "Read more" adds
const SHOWN = 100; // messages of a group that are drawn
const PAGE = 500; // messages of one request

/** What the messages of a group have in common. */
const groupOf = ({ dead }) => (dead ? JSON.stringify([dead.origin, dead.reason, pattern(dead.error ?? "")]) : "");

const deadQueues = () => {
  const found = origins();
  for (const name of live.queues.keys()) if (name.endsWith(".dead") && !found.has(name)) found.set(name, []);
  return [...found].sort(([a], [b]) => live.queues.get(b).total - live.queues.get(a).total || (a < b ? -1 : 1));
};

export async function deadPage(main, { args: [name], signal, identity }) {
  document.title = "Dead letters · MiniQ";
  if (name) { await deadLetters(main, name, signal); return; }
  const keyed = isKeyed(identity);
  const body = h("tbody");
  const heads = [["Dead-letter queue", ""], ["Source queue", ""], ["Messages", "num"], ["Oldest", "num"], ["Last error", ""]];
  const may = (queue) => !identity || identity.open || identity.allow.some((scope) => /^(\*|manage)(:|$)/.test(scope) && covers(scope, queue));
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Dead-letter queues"),
    h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)), h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Actions")))), body);
  const nothing = h("div");
  clear(main, h("div", { class: "head" }, h("h1", {}, "Dead letters")),
    h("p", { class: "note" }, "Messages that a consumer rejects, or that reach their queue's max_receives without an ack, are moved to a dead-letter queue."),
    h("div", { class: "card flush" }, h("div", { class: "scroll" }, table), nothing));
  const show = () => {
    const found = deadQueues();
    table.hidden = !found.length;
    clear(nothing, live.known && !found.length && empty("No dead-letter queues", "A dead-letter queue is created when the first message dies, or with the setting that says when:",
      curl(keyed, "/queues/emails", { max_receives: 5 }, "PUT"), python(keyed, 'mq.queue("emails").configure(max_receives=5)')));
    clear(body, found.map(([dead, from]) => {
      const { total, oldest } = live.queues.get(dead);
      const deaths = from.map((one) => live.queues.get(one).last_death).filter(Boolean).sort((a, b) => (a.at < b.at ? 1 : -1));
      return h("tr", {},
        h("td", { class: "name" }, h("a", { href: `#/dead/${encodeURIComponent(dead)}` }, dead)),
        h("td", { class: "spot", "data-label": "Source queue" }, from.map((one, place) => [place ? ", " : "", h("a", { href: queueLink(one) }, one)])),
        h("td", { class: total ? "num bad" : "num zero", "data-label": "Messages" }, count(total)),
        h("td", { class: "num", "data-label": "Oldest" }, oldest ? age(oldest) : "–"),
        h("td", { class: "full", "data-label": "Last error" }, total && deaths.length ? [h("bdi", {}, deathOf(deaths[0].error)), h("span", { class: "note" }, `, ${age(deaths[0].at)} ago`)] : ""),
        h("td", { class: "bare acts" }, total > 0 && may(dead) && h("div", { class: "row" }, h("button", { type: "button", "aria-label": `Redrive ${dead}`, onclick: () => redrive(dead, total) }, "Redrive"))));
    }));
  };
  let shown = "";
  const changed = () => {
    const state = deadQueues().map(([dead]) => `${dead} ${live.queues.get(dead).total}`).join();
    if (state !== shown || !live.queues.size) { shown = state; show(); }
  };
  live.addEventListener("stats", changed, { signal });
  show();
}

/** From when to when the messages of a group died. */
function lasted(times) {
  const [first, last] = [age(times[0]), age(times.at(-1))];
  return first === last ? `, ${last} ago.` : `, from ${first} to ${last} ago.`;
}

async function deadLetters(main, name, signal) {
  document.title = `${name} · MiniQ`;
  const [me] = await Promise.all([api.whoami(name), api.queue(name)]);
  if (signal.aborted) return;
  const may = me.verbs.includes("manage");
  const groups = h("div", { class: "groups" });
  const summary = h("p", { class: "note", role: "status" }, "Loading…");
  let ticks = []; // of the boxes of groups: whether all of it is selected
  const selection = may && new Selection(name, { dead: true, done: () => attempt(load), changed: () => ticks.forEach((tick) => tick()) });
  clear(main, h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/dead" }, "Dead letters")), h("h1", {}, name),
    h("div", { class: "actions" }, selection && selection.node,
      may && h("button", { type: "button", onclick: async () => { if (await redrive(name, (await api.queue(name)).counts.total)) load(); } }, "Redrive all"),
      h("a", { class: "button", href: queueLink(name) }, "Queue"))), summary, groups);

  let most = GROUPED;

  async function load() {
    ticks = [];
    if (selection) selection.clear();
    const found = new Map();
    let after;
    let looked = 0;
    do {
      const page = await api.peek(name, { after, limit: PAGE }, signal);
      for (const message of page.messages) {
        const key = groupOf(message);
        found.set(key, [...(found.get(key) ?? []), message]);
      }
      looked += page.messages.length;
      after = page.next;
    } while (after && looked < most);
    if (signal.aborted) return;
    const inGroups = `in ${plural(found.size, "group")}`;
    clear(summary, !looked ? "" : after ? `The first ${plural(looked, "message")} ${inGroups}. “Redrive group” and “Discard group” also find the rest of a group. ` : `${plural(looked, "message")} ${inGroups}.`,
      after && h("button", { type: "button", onclick: () => { most += GROUPED; attempt(load); } }, "Read more"));
    clear(groups, looked ? [...found].sort(([, a], [, b]) => b.length - a.length).map(([key, messages]) => group(key, messages, !after))
      : h("div", { class: "card" }, empty("No dead letters", "This queue is empty.")));
  }

  /** The ids of a group, looked for from the start of the queue to its end. */
  const members = (key) => async function* look(stop) {
    let after;
    let looked = 0;
    do {
      const page = await api.peek(name, { after, limit: PAGE }, stop);
      looked += page.messages.length;
      after = page.next;
      yield { ids: page.messages.filter((message) => groupOf(message) === key).map(({ id }) => id), looked };
    } while (after && !stop.aborted);
  };

  /** Edit a message, then send it back to where it came from. */
  async function editAndRedrive(message) {
    if (!await edit(name, message, "Save and redrive")) return;
    await attempt(() => api.redrive(name, { ids: [message.id] }), (done) => (done.moved ? `Moved back to ${message.dead.origin}.` : "Not moved: the message has changed or has no source queue."));
    load().catch(() => {});
  }

  /** A group, of which these messages were read: all of it if it is `whole`. */
  function group(key, messages, whole) {
    const [{ dead }] = messages;
    const error = messages.at(-1).dead?.error;
    const title = dead ? (error ? firstLine(error) : `No error: ${REASONS[dead.reason] ?? dead.reason}`) : "Sent directly to this queue";
    const label = dead ? `${dead.reason}, from ${dead.origin}${error ? `: ${firstLine(error)}` : ""}` : title;
    const ids = messages.map(({ id }) => id);
    const boxes = new Map();
    const all = may && selection.box(`Select all: ${label}`, () => ids);
    if (may) ticks.push(() => { all.checked = ids.every((id) => selection.ids.has(id)); for (const [id, box] of boxes) box.checked = selection.ids.has(id); });
    const shown = messages.slice(0, SHOWN);
    const texts = previews(shown);
    const details = shown.map((message) => deadDetails(message, title));
    const said = details.some(Boolean);
    const rows = shown.map((message, place) => {
      if (!may) return deadRow(name, message, texts[place], null, null, said ? details[place] : null);
      boxes.set(message.id, selection.box(`Select ${message.id}`, () => [message.id]));
      return deadRow(name, message, texts[place], h("td", { class: "bare box" }, boxes.get(message.id)),
        h("td", { class: "bare acts" }, message.dead && h("button", { type: "button", class: "plain", "aria-label": `Edit and redrive ${message.id}`, onclick: () => editAndRedrive(message) }, "Edit")), said ? details[place] : null);
    });
    const onRedrive = () => (whole ? selection.redrive(ids) : selection.redriveSome("all messages of this group", members(key)));
    const onDiscard = () => (whole ? selection.discard(ids) : selection.discardSome("all messages of this group", members(key)));
    const times = messages.map((message) => message.dead?.at).filter(Boolean).sort();
    return h("section", { class: "card flush below" },
      h("div", { class: "card-head" }, h("div", { class: "row" }, all, h("h2", {}, h("bdi", {}, title)), h("span", { class: "badge dead" }, whole ? exact(messages.length) : `${exact(messages.length)} or more`),
        may && h("button", { type: "button", "aria-label": `Redrive group: ${label}`, onclick: onRedrive }, "Redrive group"),
        may && h("button", { type: "button", class: "bad", "aria-label": `Discard group: ${label}`, onclick: onDiscard }, "Discard group")),
      dead && h("p", { class: "note" }, `${{ max_receives: "Exceeded max_receives", rejected: "Rejected" }[dead.reason] ?? dead.reason} in `, h("a", { href: queueLink(dead.origin) }, dead.origin), lasted(times)),
      error && error.includes("\n") && h("details", {}, h("summary", {}, "Traceback"), h("pre", { class: "body", tabIndex: 0, dir: "auto" }, error))),
      h("div", { class: "scroll" }, h("table", { class: "cards inline" }, h("caption", { class: "visually-hidden" }, label), deadHead(may && h("th", { scope: "col", class: "box" }, h("span", { class: "visually-hidden" }, "Select")), may && h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Edit")), said), h("tbody", {}, rows))),
      messages.length > SHOWN && h("p", { class: "more note" }, `${exact(messages.length - SHOWN)} more not shown; selecting all includes those that were read`));
  }

  await load();
}
