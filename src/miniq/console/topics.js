// Topics: their subscriptions and rates, and which of them a message would match.
import { api, sleep } from "./api.js";
import { clear, curl, empty, encode, exact, field, h, isKeyed, plural, python, queueLink, rate, say, tile } from "./dom.js";
import { ask, attempt, confirm, toast } from "./dialogs.js";
import { headersOf, send } from "./compose.js";

const SECONDS = 2;
const topicLink = (name) => `#/topics/${encode(name)}`;

/** Look again every few seconds while the page is shown. */
async function follow(signal, load) {
  await load();
  while (!signal.aborted) {
    await sleep(SECONDS * 1000);
    if (!signal.aborted && !document.hidden) await load().catch(() => {});
  }
}

export async function topicsPage(main, { args: [name], signal, identity }) {
  return name === undefined ? list(main, signal, isKeyed(identity)) : topic(main, name, signal);
}

async function list(main, signal, keyed) {
  document.title = "Topics · MiniQ";
  const body = h("tbody");
  const heads = [["Topic", ""], ["Subscriptions", "num"], ["Queues", "num"], ["Published/s", "num"], ["Copied/s", "num"], ["Unmatched/s", "num"]];
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Topics"),
    h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))), body);
  const foot = h("div");
  clear(main, h("div", { class: "head" }, h("h1", {}, "Topics"), h("div", { class: "actions" }, h("button", { type: "button", class: "main", onclick: create }, "New topic"))),
    h("p", { class: "note" }, "What is published to a topic is copied into every subscribed queue whose pattern and filter match."),
    h("div", { class: "card flush" }, h("div", { class: "scroll" }, table), foot));
  let shown = "";

  async function create() {
    const input = h("input", { required: true, autocomplete: "off", spellcheck: false });
    const made = await ask({ title: "New topic", action: "Create", body: field("Name", input, true), submit: () => api.configureTopic(input.value.trim(), {}) });
    if (made) location.hash = topicLink(made.name);
  }

  const load = async () => {
    const { topics } = await api.topics(signal);
    if (signal.aborted || JSON.stringify(topics) === shown) return;
    shown = JSON.stringify(topics);
    clear(body, topics.map(({ name, subscriptions, rates }) => h("tr", {},
      h("td", { class: "name" }, h("a", { href: topicLink(name) }, name)),
      h("td", { class: "num", "data-label": "Subscriptions" }, exact(subscriptions.length)),
      h("td", { class: "num", "data-label": "Queues" }, exact(new Set(subscriptions.map(({ queue }) => queue)).size)),
      h("td", { class: "num", "data-label": "Published/s" }, rate(rates.published)),
      h("td", { class: "num", "data-label": "Copied/s" }, rate(rates.copied)),
      h("td", { class: "num", "data-label": "Unmatched/s" }, rate(rates.unmatched)))));
    table.hidden = !topics.length;
    clear(foot, !topics.length && empty("No topics", "Create one here, or subscribe a queue from a shell, or in Python:",
      curl(keyed, "/topics/orders/subscriptions/billing", { pattern: "orders.*.created" }, "PUT"), python(keyed, 'mq.topic("orders").subscribe("billing", pattern="orders.*.created")')));
  };
  await load();
  follow(signal, load).catch(() => {});
}

async function topic(main, name, signal) {
  document.title = `${name} · Topics · MiniQ`;
  const me = await api.whoami(name);
  const may = (verb) => me.verbs.includes(verb);
  if (signal.aborted) return;
  const published = tile("published/s", "–");
  const copied = tile("copied/s", "–");
  const unmatched = tile("unmatched/s", "–");
  const body = h("tbody");
  const heads = ["Subscription", "Queue", "Pattern", "Filter", "Matches"];
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Subscriptions"),
    h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)), may("manage") && h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Change")))), body);
  const foot = h("div");
  const verdicts = new Map(); // by subscription, where its match is shown
  let subscriptions = null;

  // Trying a message
  const key = h("input", { autocomplete: "off", spellcheck: false, placeholder: "orders.7.created" });
  const headers = h("textarea", { rows: 3, spellcheck: false, placeholder: "country: de" });
  const text = h("textarea", { rows: 3, spellcheck: false, placeholder: '{"total": 120}' });
  const problem = h("p", { class: "error", role: "alert" });
  const outcome = h("p", { class: "note", role: "status" });
  let asked = 0;
  async function tryIt() {
    asked += 1;
    const turn = asked;
    try {
      let body;
      if (text.value.trim()) {
        try { body = JSON.parse(text.value); } catch (error) { throw new Error(`body: ${error.message}`); }
        if (body === null || typeof body !== "object" || Array.isArray(body)) throw new Error('body: not a JSON object; filters of the body only match objects such as {"total": 120}');
      }
      const { subscriptions: matches } = await api.matchTopic(name, { key: key.value || null, headers: headersOf(headers.value), body });
      if (turn !== asked || signal.aborted) return;
      say(problem, "");
      const queues = new Set(matches.filter(({ matches: yes }) => yes).map(({ queue }) => queue));
      say(outcome, queues.size ? `Would be copied to ${plural(queues.size, "queue")}: ${[...queues].join(", ")}` : "Would be copied to no queue.");
      for (const match of matches) {
        const place = verdicts.get(match.name);
        if (place) clear(place, h("span", { class: match.matches ? "badge ready" : "badge", title: match.reason ?? "" }, match.matches ? "yes" : "no"), match.reason && h("span", { class: "note" }, ` ${match.reason}`));
      }
    } catch (error) {
      if (turn === asked && error.name !== "AbortError") say(problem, error.message);
    }
  }
  for (const input of [key, headers, text]) input.addEventListener("input", tryIt);

  // Changes
  async function subscribe(old) {
    const label = h("input", { value: old?.name ?? "", required: true, autocomplete: "off", spellcheck: false, readOnly: Boolean(old) });
    const queue = h("input", { value: old?.queue ?? "", autocomplete: "off", spellcheck: false, placeholder: "the subscription's name" });
    const pattern = h("input", { value: old?.pattern ?? "", autocomplete: "off", spellcheck: false, placeholder: "orders.*.created" });
    const filter = h("textarea", { rows: 4, spellcheck: false, value: old?.filter ? JSON.stringify(old.filter, null, 2) : "", placeholder: '{"country": ["de", {"prefix": "at"}]}' });
    const scope = h("select", {}, ["headers", "body"].map((value) => h("option", { value, selected: value === (old?.filter_on ?? "headers") }, value)));
    const done = await ask({
      title: old ? `Subscription ${old.name}` : `Subscribe to ${name}`, action: old ? "Save" : "Subscribe",
      body: [h("div", { class: "fields" }, field("Name", label), field("Queue", queue)), field("Pattern of the key: * is one word, # any number", pattern, true), field("Filter, in JSON", filter, true), field("Applies to", scope)],
      submit: () => {
        const given = { filter_on: scope.value, envelope: old?.envelope ?? undefined, sns: old?.sns ?? undefined, queue: queue.value.trim() || undefined, pattern: pattern.value.trim() || undefined };
        if (filter.value.trim()) {
          try { given.filter = JSON.parse(filter.value); } catch (error) { throw new Error(`filter: ${error.message}`); }
        }
        return api.subscribe(name, label.value.trim(), given);
      },
    });
    if (done) { toast(`Queue ${done.queue} is subscribed.`); attempt(look); }
  }
  async function unsubscribe(old) {
    const done = await confirm({ title: `Remove ${old.name}?`, action: "Remove", submit: () => api.unsubscribe(name, old.name),
      text: `Queue ${old.queue} gets nothing more from this topic. What it has stays.` });
    if (done) { toast(`Removed ${old.name}.`); attempt(look); }
  }
  async function onPublish() {
    const sent = await send(name, { title: `Publish to ${name}`, action: "Publish", post: api.publish });
    if (sent) toast(`Published to ${plural(sent.queues, "queue")}.`);
  }
  /** Delete the topic when nothing asks for it any more. */
  async function remove() {
    removed = true;
    try {
      await loading.catch(() => {});
      return await api.deleteTopic(name);
    } catch (error) {
      removed = false;
      throw error;
    }
  }
  async function onDelete() {
    const done = await confirm({ title: `Delete ${name}?`, action: "Delete", submit: remove,
      text: `The topic and ${plural(subscriptions?.length ?? 0, "subscription")} will be deleted. The queues stay.` });
    if (done) { toast(`Deleted ${name}.`); location.hash = "#/topics"; }
  }

  let removed = false, loading = Promise.resolve();
  async function look() {
    if (!removed) await (loading = load());
  }
  async function load() {
    const info = await api.topic(name, signal);
    if (signal.aborted) return;
    for (const [node, value] of [[published, info.rates.published], [copied, info.rates.copied], [unmatched, info.rates.unmatched]]) say(node.firstChild, rate(value));
    if (JSON.stringify(info.subscriptions) === JSON.stringify(subscriptions)) return;
    subscriptions = info.subscriptions;
    verdicts.clear();
    clear(body, subscriptions.map((one) => {
      const verdict = h("td", { class: "full", "data-label": "Matches" });
      verdicts.set(one.name, verdict);
      return h("tr", {},
        h("td", { class: "name" }, h("bdi", {}, one.name)),
        h("td", { "data-label": "Queue" }, h("a", { href: queueLink(one.queue) }, one.queue)),
        h("td", { class: "mono full", "data-label": "Pattern" }, one.pattern ?? "any key"),
        h("td", { class: "mono full", "data-label": "Filter" }, one.filter ? `${one.filter_on === "body" ? "body " : ""}${JSON.stringify(one.filter)}` : "any headers"),
        verdict,
        may("manage") && h("td", { class: "bare full" }, h("div", { class: "row" },
          h("button", { type: "button", "aria-label": `Change ${one.name}`, onclick: () => subscribe(one) }, "Change"),
          h("button", { type: "button", class: "bad", "aria-label": `Remove ${one.name}`, onclick: () => unsubscribe(one) }, "Remove"))));
    }));
    table.hidden = !subscriptions.length;
    clear(foot, !subscriptions.length && empty("No subscriptions", "What is published now is copied to no queue. Subscribe one here, or from a shell, or in Python:",
      curl(!me.open, `/topics/${name}/subscriptions/billing`, { pattern: "orders.*.created" }, "PUT"), python(!me.open, `mq.topic("${name}").subscribe("billing", pattern="orders.*.created")`)));
    await tryIt();
  }

  clear(main,
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/topics" }, "Topics")), h("h1", {}, name), h("div", { class: "actions" },
      may("publish") && h("button", { type: "button", class: "main", "data-key": "send", onclick: () => attempt(onPublish) }, "Publish"),
      may("manage") && h("button", { type: "button", onclick: () => subscribe(null) }, "Subscribe"),
      may("manage") && h("button", { type: "button", class: "bad", onclick: onDelete }, "Delete"))),
    h("div", { class: "tiles" }, published, copied, unmatched),
    h("div", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Subscriptions")), h("div", { class: "scroll" }, table), foot),
    h("div", { class: "card" }, h("h2", {}, "Try a message"), h("p", { class: "note" }, "Nothing is sent: the table above shows which subscriptions would match."),
      h("div", { class: "fields" }, field("Key", key), field("Headers, one per line", headers, true), field("Body, a JSON object", text, true)), problem, outcome));
  await look();
  follow(signal, look).catch(() => {});
}
