// Claims: the batches that pipelines hold, with age and state.
import { api, key } from "./api.js";
import { age, clear, bytes, download, empty, exact, h, queueLink } from "./dom.js";
import { attempt } from "./dialogs.js";

const AT_ONCE = 8;

export async function claimsPage(main, { signal, identity }) {
  document.title = "Claims · MiniQ";
  const body = h("tbody");
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Claims"), h("thead", {}, h("tr", {},
    [["Queue", ""], ["Group", ""], ["State", ""], ["Claim", "num"], ["Messages", "num"], ["Bytes", "num"], ["Age", "num"], ["Last acked", "num"]].map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))), body);
  const foot = h("div");
  const report = h("span");
  clear(main, h("div", { class: "head" }, h("h1", {}, "Claims"), h("div", { class: "actions" }, report, h("button", { type: "button", onclick: () => attempt(load) }, "Refresh"))),
    h("p", { class: "note" }, "Pipelines read a queue in claims: numbered batches that don't change until they are acked."),
    h("div", { class: "card flush" }, h("div", { class: "scroll" }, table), foot));

  async function load() {
    const names = (await api.stats()).queues.map((queue) => queue.name);
    const found = [];
    const work = async () => {
      for (let name = names.pop(); name !== undefined; name = names.pop()) {
        const { groups } = await api.claims(name, signal).catch((error) => {
          // The queue was deleted meanwhile, or the store does not support claims.
          if (error.status === 404 || error.status === 400) return { groups: [] };
          throw error;
        });
        for (const group of groups) found.push({ name, ...group });
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    if (signal.aborted) return;
    found.sort((a, b) => (a.name + a.group < b.name + b.group ? -1 : 1));
    clear(body, found.map((group) => {
      const open = group.claims.filter((claim) => claim.state === "held");
      const shown = open.length ? open : group.claims.slice(-1);
      const rows = shown.length ? shown : [null];
      return rows.map((claim) => h("tr", {},
        h("td", { class: "name" }, h("a", { href: queueLink(group.name) }, group.name)),
        h("td", { "data-label": "Group" }, h("bdi", {}, group.group)),
        h("td", { "data-label": "State" }, h("span", { class: claim?.state === "held" ? "badge leased" : "badge" }, claim?.state ?? "idle")),
        h("td", { class: "num", "data-label": "Claim" }, claim ? exact(claim.claim) : "–"),
        h("td", { class: "num", "data-label": "Messages" }, claim ? exact(claim.messages) : "–"),
        h("td", { class: "num", "data-label": "Bytes" }, claim ? bytes(claim.bytes) : "–"),
        h("td", { class: "num", "data-label": "Age" }, claim ? age(claim.made_at) : "–"),
        h("td", { class: "num", "data-label": "Last acked" }, exact(group.acked))));
    }));
    table.hidden = !found.length;
    clear(foot, !found.length && empty("No claims", "A Spark stream with format(\"miniq\") makes claims; so does:",
      `curl ${location.origin}/v1/queues/emails/claims -d '{"group": "etl", "after": 0}'`));
  }

  // The last pipeline report: a link, or a download when a key is needed, because a link cannot carry one.
  async function last() {
    const made = (await api.report("HEAD")).headers.get("last-modified");
    const text = `Last report, ${age(made)} ago`;
    clear(report, key.get() ? h("button", { type: "button", onclick: () => attempt(async () => download(await (await api.report()).blob(), "report.html")) }, text)
      : h("a", { class: "button", href: "/v1/report", target: "_blank", rel: "noopener" }, text));
  }

  await load();
  if (identity?.report) await last().catch(() => {}); // there may be no report yet
}
