// Claims: the batches that pipelines hold, with age and state.
import { api, key, live } from "./api.js";
import { age, clear, bytes, covers, curl, download, empty, exact, h, isKeyed, plural, python, queueLink } from "./dom.js";
import { attempt, confirm, toast } from "./dialogs.js";

const isStuck = (group, number) => {
  const q = live.queues.get(group.queue);
  return q?.problems.includes("stuck_claim") && q.claim.group === group.group && q.claim.claim === number;
};
const mayRelease = (identity, queue) => !identity || identity.open || identity.allow.some((scope) => /^(\*|receive)(:|$)/.test(scope) && covers(scope, queue));

export async function claimsPage(main, { signal, identity }) {
  document.title = "Claims · MiniQ";
  const keyed = isKeyed(identity);
  const body = h("tbody");
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Claims"), h("thead", {}, h("tr", {},
    [["Queue", ""], ["Group", ""], ["State", ""], ["Claim", "num"], ["Messages", "num"], ["Bytes", "num"], ["Age", "num"], ["Last acked", "num"]].map(([text, kind]) => h("th", { scope: "col", class: kind }, text)), h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Actions")))), body);
  const foot = h("div");
  const report = h("span");
  clear(main, h("div", { class: "head" }, h("h1", {}, "Claims"), h("div", { class: "actions" }, report, h("button", { type: "button", onclick: () => attempt(load) }, "Refresh"))),
    h("p", { class: "note" }, "Pipelines read a queue in claims: numbered batches that don't change until they are acked."),
    h("div", { class: "card flush" }, h("div", { class: "scroll" }, table), foot));

  let ages = []; // cells, each with its group and claim
  const mark = () => ages.forEach(([cell, group, claim]) => cell.classList.toggle("bad", Boolean(isStuck(group, claim.claim))));

  async function load() {
    const { groups } = await api.claims(signal);
    if (signal.aborted) return;
    ages = [];
    clear(body, groups.map((group) => {
      const open = group.claims.filter((claim) => claim.state === "held");
      const shown = open.length ? open : group.claims.slice(-1);
      const rows = shown.length ? shown : [null];
      return rows.map((claim, place) => h("tr", {},
        h("td", { class: "name" }, h("a", { href: queueLink(group.queue) }, group.queue)),
        h("td", { "data-label": "Group", class: "full" }, h("bdi", {}, group.group)),
        h("td", { "data-label": "State" }, h("span", { class: claim?.state === "held" ? "badge leased" : "badge" }, claim?.state ?? "idle")),
        h("td", { class: "num", "data-label": "Claim" }, claim ? exact(claim.claim) : "–"),
        h("td", { class: "num", "data-label": "Messages" }, claim ? exact(claim.messages) : "–"),
        h("td", { class: "num", "data-label": "Bytes" }, claim ? bytes(claim.bytes) : "–"),
        aged(group, claim),
        h("td", { class: "num", "data-label": "Last acked" }, exact(group.acked)),
        h("td", { class: "bare acts" }, open.length > 0 && !place && mayRelease(identity, group.queue) && h("div", { class: "row" }, h("button", { type: "button", "aria-label": `Release ${group.group} of ${group.queue}`, onclick: () => release(group, open) }, "Release")))));
    }));
    mark();
    table.hidden = !groups.length;
    clear(foot, !groups.length && empty("No claims", "A Spark stream with format(\"miniq\") makes claims; so does:",
      curl(keyed, "/queues/emails/claims", { group: "etl", after: 0 }), python(keyed, 'claim = mq.queue("emails").claims("etl").next(0)')));
  }

  function aged(group, claim) {
    const cell = h("td", { class: "num", "data-label": "Age" }, claim ? age(claim.made_at) : "–");
    if (claim) ages.push([cell, group, claim]);
    return cell;
  }

  async function release(group, open) {
    const messages = open.reduce((so, claim) => so + claim.messages, 0);
    const done = await confirm({ title: `Release the claims of ${group.group}?`, action: "Release", submit: () => api.releaseClaims(group.queue, group.group),
      text: `${plural(messages, "message")} in ${plural(open.length, "claim")} return to ${group.queue} at once, and any consumer may get them. If the reader still works on them, that work is done twice, and its next ack is refused. Make sure that it has stopped.` });
    if (done) { toast(`Released ${plural(done.released, "message")}.`); attempt(load); }
  }

  // The last pipeline report: a link, or a download when a key is needed, because a link cannot carry one.
  async function last() {
    const made = (await api.report("HEAD")).headers.get("last-modified");
    const text = `Last report, ${age(made)} ago`;
    clear(report, key.get() ? h("button", { type: "button", onclick: () => attempt(async () => download(await (await api.report()).blob(), "report.html")) }, text)
      : h("a", { class: "button", href: "/v1/report", target: "_blank", rel: "noopener" }, text));
  }

  live.addEventListener("stats", mark, { signal }); // they may come after the claims
  await load();
  if (identity?.report) await last().catch(() => {}); // there may be no report yet
}
