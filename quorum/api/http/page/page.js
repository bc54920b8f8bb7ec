"use strict";
// The management page of one member. Every view is named by the part of the URL behind #. All data comes from this
// member: /api/v1, as docs/http.md describes it, and /api/v1/events for what changes. Names, bodies and selectors come
// from clients, so they are only ever put into the page as text.

const main = document.getElementById("main");
const state = document.getElementById("state");
const number = new Intl.NumberFormat("en");
const decimal = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
// An origin has no user and password. The page's own address may have them, and then fetch refuses what is relative to it.
const API = location.origin + "/api/v1";
const ROWS = 50; // queues of a page of the list
const SAMPLES = 31; // points of a rate's line: a minute
let watching = null; // the AbortController of the open stream of events
let drawn = 0; // number of the view that is shown: what an earlier one asked for comes too late

// ---- small tools

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map((each) => (each instanceof Node ? each : String(each))));
  return made;
}

function table(caption, columns, rows, none) {
  const head = columns.map(([title, kind]) => element("th", { scope: "col", class: kind || null }, title));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell, place) => element("td", { class: columns[place][1] || null },
      typeof cell === "number" ? number.format(cell) : cell ?? ""))));
  if (!rows.length) {
    body.push(element("tr", {}, element("td", { class: "quiet", colspan: columns.length }, none || "none")));
  }
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

function section(title, ...children) {
  return element("section", { "aria-label": title }, element("h2", {}, title), ...children);
}

function mark(kind, text) {
  return element("span", { class: kind }, text);
}

function link(text, ...parts) {
  return element("a", { href: "#/" + parts.map(encodeURIComponent).join("/") }, text);
}

function problem(error) {
  return element("p", { class: "bad", role: "alert" }, error.message);
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (count >= 1024 && place < units.length - 1) {
    count /= 1024;
    place += 1;
  }
  return `${decimal.format(count)} ${units[place]}`;
}

function messages(count) {
  return `${number.format(count)} message${count === 1 ? "" : "s"}`;
}

async function call(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(API + path, options);
  } catch {
    throw new Error("The member does not answer.");
  }
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error.message), found.error);
  return found;
}

// Replaces what a place shows, if it has changed. The focus stays where the keyboard has put it.
function refresh(place, found, make) {
  const text = JSON.stringify(found);
  if (place.shown === text) return;
  place.shown = text;
  const name = (each) => each.getAttribute("href") || each.getAttribute("aria-label");
  const focused = place.contains(document.activeElement) ? name(document.activeElement) : null;
  place.replaceChildren(...make(found));
  if (focused === null) return;
  const again = [...place.querySelectorAll("a, [tabindex]")].find((each) => name(each) === focused);
  if (again) again.focus({ preventScroll: true });
}

// Shows what a call returns, or why it failed.
async function told(output, work) {
  try {
    const found = await work();
    if (found) output.replaceChildren(...found);
  } catch (error) {
    output.replaceChildren(problem(error));
  }
}

// ---- rates: of counters that only go up, between two events

const COUNTERS = [
  ["published", (found) => found.totals.published],
  // A message that was handed out is checked out still, or has left its consumer in one of these ways.
  ["delivered", (found) => found.checked_out + found.totals.settled + found.totals.returned + found.totals.rejected +
    found.totals.delivery_limit],
  ["acknowledged", (found) => found.totals.settled],
];

class Rates {
  constructor() {
    this.before = null;
    this.lines = COUNTERS.map(() => []);
    this.values = COUNTERS.map(() => element("dd", { class: "figure" }, "…"));
    this.pictures = COUNTERS.map(([name]) => drawing(name));
    this.place = element("dl", { class: "cards", "aria-label": "Messages a second" }, ...COUNTERS.map(([name], place) =>
      element("div", { class: "card" }, element("dt", {}, `${name} a second`), this.values[place],
        element("dd", { class: "line" }, this.pictures[place]))));
  }

  // found: counts and totals, as they were at this time of the member's clock.
  add(found, at_ms) {
    const now = COUNTERS.map(([, count]) => count(found));
    const before = this.before;
    if (before && at_ms <= before.at_ms) return;
    this.before = { at_ms, now };
    if (!before) return;
    const rates = now.map((count, place) => ((count - before.now[place]) * 1000) / (at_ms - before.at_ms));
    if (rates.some((rate) => rate < 0)) return; // a queue with its counters is gone
    rates.forEach((rate, place) => {
      const line = this.lines[place];
      line.push(rate);
      if (line.length > SAMPLES) line.shift();
      this.values[place].textContent = decimal.format(rate);
      draw_line(this.pictures[place], line);
    });
  }
}

const SVG = "http://www.w3.org/2000/svg";

function drawing(name) {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("viewBox", "0 0 120 30");
  made.setAttribute("preserveAspectRatio", "none");
  made.setAttribute("aria-hidden", "true"); // the figure beside it says it
  made.append(document.createElementNS(SVG, "polygon"), document.createElementNS(SVG, "polyline"));
  return made;
}

function draw_line(picture, line) {
  const highest = Math.max(1, ...line);
  const from = SAMPLES - line.length;
  const points = line.map((rate, place) => `${((from + place) * 120) / (SAMPLES - 1)},${28 - (26 * rate) / highest}`);
  picture.lastChild.setAttribute("points", points.join(" "));
  picture.firstChild.setAttribute("points", [`${(from * 120) / (SAMPLES - 1)},30`, ...points, "120,30"].join(" "));
}

// ---- views: each returns its elements, and may return a function that takes events

async function overview() {
  const status = await call("GET", "/cluster");
  const rates = new Rates();
  const counts = element("div");
  const place = element("div");
  const show = (found) => refresh(place, found, cluster_short);
  show(status);
  return {
    title: "Overview",
    elements: [rates.place, counts, place],
    events: "?totals=true",
    onEvent: (event) => {
      show(event.cluster);
      if (!event.totals) return;
      rates.add(event.totals, event.totals.at_ms);
      refresh(counts, event.totals, all_counts);
    },
  };
}

function all_counts(totals) {
  const stuck = totals.dead_letter_problems;
  return [
    figures([["queues", totals.queues], ["consumers", totals.consumers], ["ready", totals.ready],
      ["checked out", totals.checked_out], ["delayed", totals.delayed], ["dead", totals.dead]], "Queues and messages"),
    ...(stuck ? [element("p", { class: "bad" }, `The dead letters of ${number.format(stuck)} queues wait: their target does not take them.`)] : []),
  ];
}

function figures(pairs, label) {
  return element("dl", { class: "cards", "aria-label": label }, ...pairs.map(([name, value]) =>
    element("div", { class: "card" }, element("dt", {}, name),
      element("dd", { class: "figure" }, typeof value === "number" ? number.format(value) : value))));
}

function reachability(member) {
  return mark(member.reachable ? "good" : "bad", member.reachable ? "reachable" : "not reachable");
}

function disk_state(disk) {
  if (!disk) return mark("quiet", "not reported");
  if (disk.full) return mark("bad", "full: takes no entries");
  if (disk.low) return mark("bad", "low: publishes are refused");
  if (disk.slow) return mark("bad", "slow");
  return mark("good", "in order");
}

// The state of this member's own data in a group.
function group_state(group) {
  if (group.disputed) return mark("bad", `not served: ${group.disputed}`);
  if (group.quarantined) return mark("bad", "quarantined: does not vote until it has recovered");
  if (group.unreadable || group.fetching) {
    return mark("bad", `healing: ${number.format(group.unreadable + group.fetching)} bodies to fetch`);
  }
  return mark("good", group.repaired ? `healthy; repaired ${number.format(group.repaired)}` : "healthy");
}

function cluster_short(status) {
  const members = status.members.map((each) => [
    each.name, each.client_address, reachability(each), membership(each), disk_state(each.disk),
  ]);
  const led = (name) => status.groups.filter((group) => group.leader === name).length;
  const without = led("");
  const sick = status.groups.filter((group) => group.disputed || group.quarantined || group.unreadable || group.fetching);
  return [
    element("p", {}, `This is ${status.answering_node}: ${status.standing}. `, link("Raft groups", "raft"), ": ",
      mark(without ? "bad" : "good", without ? `${without} of ${status.groups.length} without a leader` :
        `all ${status.groups.length} have a leader`), "; ",
      mark(sick.length ? "bad" : "good", sick.length ? `${sick.length} not healthy here` : "all healthy here"), "."),
    table("Members", [["name"], ["clients"], ["connection from here"], ["state"], ["disk"], ["leads groups", "number"]],
      members.map((row) => [...row, led(row[0])])),
  ];
}

function membership(member) {
  return member.drained ? "drained" : member.joining ? "joining" : member.replaces ? `replaces ${member.replaces}` : "";
}

async function raft() {
  const status = await call("GET", "/cluster");
  const place = element("div");
  const show = (found) => refresh(place, found, cluster_whole);
  show(status);
  return { title: "Raft groups and members", elements: [place], onEvent: (event) => show(event.cluster) };
}

// How many entries the other members of a group lack. Only the group's leader knows it.
function behind(group, answering_node, lost) {
  if (group.leader === answering_node) {
    return group.progress.map((each) => each.match_index === 0 ?
      `${each.name} ${lost.has(each.name) ? "cannot be reached" : "not known yet"}` :
      `${each.name} ${number.format(Math.max(0, group.last_index - each.match_index))}`).join(", ");
  }
  return group.leader ? element("span", { class: "quiet" }, `${group.leader} knows`) : "";
}

function cluster_whole(status) {
  const members = status.members.map((each) => [
    each.name, reachability(each), membership(each), each.disk ? bytes(each.disk.free_bytes) : "",
    each.disk ? bytes(each.disk.limit_bytes) : "", each.disk ? `${decimal.format(each.disk.sync_p99_us / 1000)} ms` : "",
    disk_state(each.disk),
  ]);
  const lost = new Set(status.members.filter((each) => !each.reachable).map((each) => each.replaces ? each.id : each.name));
  const groups = status.groups.map((each) => [
    each.group === 0 ? "0 (system)" : String(each.group),
    each.leader || mark("bad", "none"),
    each.term,
    each.members.join(", ") + (each.settled ? "" : " (changing)"),
    each.learners.join(", "),
    each.commit_index,
    behind(each, status.answering_node, lost),
    each.commit_index - each.applied_index,
    group_state(each),
  ]);
  return [
    element("p", { class: "quiet" }, `This is what ${status.answering_node} knows. Lag and state of data are its own; ` +
      "the page of another member shows those of that member. How far members are behind is known to the leader."),
    table("Raft groups", [["group"], ["leader"], ["term", "number"], ["voters"], ["learners: not voting yet"],
      ["committed entries", "number"], ["behind the leader, entries"], ["lag here, entries", "number"], ["data here"]], groups),
    table("Members", [["name"], ["connection from here"], ["state"], ["disk free", "number"], ["low below", "number"],
      ["sync, 99th percentile", "number"], ["disk"]], members),
  ];
}

async function queues(parameters) {
  const prefix = parameters.get("prefix") || "";
  const after = parameters.get("after") || "";
  const query = `prefix=${encodeURIComponent(prefix)}&after=${encodeURIComponent(after)}`;
  const place = element("div");
  const here = (more) => "#/queues?prefix=" + encodeURIComponent(prefix) + (more ? "&after=" + encodeURIComponent(more) : "");
  const next = element("a", {}, "Next page");
  const caption = (prefix ? `Queues that begin with ${prefix}` : "Queues") + (after ? `, after ${after}` : "");
  let before = new Map(); // by id: the counters of the event before
  let before_ms = 0;
  const show = (found, at_ms) => {
    const rates = found.queues.map((each) => RATED.map((name) => {
      const last = before.get(each.id);
      return last && before_ms ? Math.max(0, ((each.totals[name] - last[name]) * 1000) / (at_ms - before_ms)) : null;
    }));
    before = new Map(found.queues.map((each) => [each.id, each.totals]));
    before_ms = at_ms;
    refresh(place, [found.queues, rates], () => [table(caption, QUEUE_COLUMNS, found.queues.map((each, row) => [
      link(each.name, "queue", each.name), each.ready, each.checked_out, each.delayed, each.dead, each.consumers,
      ...rates[row].map((rate) => rate === null ? "…" : decimal.format(rate)), each.leader || mark("bad", "none"),
    ]), "There is no such queue.")]);
    next.hidden = !found.next_after;
    next.setAttribute("href", here(found.next_after));
  };
  show(await call("GET", `/queues?limit=${ROWS}&${query}`), 0);
  const field = element("input", { id: "prefix", name: "prefix", value: prefix, autocomplete: "off" });
  const form = element("form", {
    role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      location.hash = "#/queues?prefix=" + encodeURIComponent(field.value);
    },
  }, element("div", {}, element("label", { for: "prefix" }, "Names that begin with"), field), element("button", {}, "Show"));
  const pages = element("nav", { class: "pages", "aria-label": "Pages of the list" },
    ...(after ? [element("a", { href: here("") }, "First page")] : []), next);
  return {
    title: "Queues",
    elements: [form, place, pages],
    events: `?queues=${ROWS}&${query}`,
    onEvent: (event) => event.queues && show(event.queues, event.at_ms),
  };
}

const RATED = ["published", "settled"];
const QUEUE_COLUMNS = [["name"], ["ready", "number"], ["checked out", "number"], ["delayed", "number"], ["dead", "number"],
  ["consumers", "number"], ["published a second", "number"], ["acknowledged a second", "number"], ["leader"]];

async function queue(parameters, name) {
  const path = "/queues/" + encodeURIComponent(name);
  const found = await call("GET", path);
  const rates = new Rates();
  const place = element("div");
  const show = (described) => refresh(place, described, details);
  show(found);
  return {
    title: `Queue ${name}`,
    elements: [
      rates.place, place, subscriptions(path), dead_letters(name, path, found.queue),
      selector_console(path, found.queue, parameters.get("selector") || ""), dangers(name, path, found.queue),
    ],
    events: "?queue=" + encodeURIComponent(name),
    onEvent: (event) => {
      if (!event.queue) return;
      rates.add(event.queue.queue, event.at_ms);
      show(event.queue);
    },
  };
}

function details(described) {
  const info = described.queue;
  const counts = [["ready", info.ready], ["checked out", info.checked_out], ["delayed", info.delayed], ["dead", info.dead]];
  const left = Object.entries(info.totals).filter(([, value]) => value);
  const settings = Object.entries(info.effective_arguments).map(([key, value]) => [key, JSON.stringify(value)]);
  const stored = described.storage;
  const consumers = described.consumers.map((each) => [
    each.consumer_tag || "(get)", each.node, each.selector || (each.filtered ? "a property filter" : ""), each.credit, each.checked_out,
  ]);
  return [
    element("p", {}, `Raft group ${info.group}, led by `, info.leader || mark("bad", "none"),
      info.policy ? `; policy ${info.policy}` : "", info.owner ? `; declared by ${info.owner}` : ""),
    ...(info.dead_letter_problem ? [element("p", { class: "bad" }, `Dead letters wait: ${info.dead_letter_problem}`)] : []),
    element("div", { class: "side" },
      table("Messages now", [["state"], ["messages", "number"]], counts),
      table("Where this member has them", [["place"], ["messages", "number"]], [
        ["alpha: in memory", stored.alpha], ["beta: body on disk", stored.beta],
        ["gamma: block stored too", stored.gamma], ["delta: only on disk", stored.delta]]),
      table("Since it was declared", [["event"], ["messages", "number"]], left.map(([key, value]) => [key.replaceAll("_", " "), value]), "nothing yet"),
      table("Arguments", [["argument"], ["value"]], settings)),
    table("Consumers", [["tag"], ["member"], ["selector"], ["credit", "number"], ["checked out", "number"]], consumers),
  ];
}

// ---- subscriptions

const ON_EXPIRY = { RELEASE: "released", DISCARD: "discarded", KEEP: "kept" };

function subscriptions(path) {
  const output = element("div", { "aria-live": "polite" });
  const look = () => told(output, async () => {
    const found = await call("GET", `${path}/subscriptions`);
    return [table("Durable subscriptions", SUBSCRIPTION_COLUMNS, found.subscriptions.map((each) => [
      each.subscription, each.selector, each.state.outstanding, each.state.settled, each.state.last,
      `${number.format(each.timeout_ms / 1000)} s`, ON_EXPIRY[each.on_expiry],
    ]))];
  });
  look();
  return section("Subscriptions",
    element("p", {}, "Spark queries and other programs reserve messages by a durable subscription. ",
      element("button", { type: "button", onclick: look }, "Look again")),
    output);
}

const SUBSCRIPTION_COLUMNS = [["subscription"], ["selector"], ["outstanding", "number"], ["settled to", "number"],
  ["reserved to", "number"], ["timeout", "number"], ["then outstanding messages are"]];

// ---- dead letters

function dead_letters(name, path, info) {
  const target = info.effective_arguments["x-dead-letter-exchange"];
  const key = info.effective_arguments["x-dead-letter-routing-key"] || name;
  const found = element("div", { "aria-live": "polite" });
  const outcome = element("div", { "aria-live": "polite" });
  const look = () => told(found, async () => waiting_letters(await call("GET", `${path}/dead-letters`), redrive));
  const redrive = async (only, text, counted) => {
    const loss = `${counted} are published to ${only ? `the queue ${only}, where they died last` :
      "the queues where they died last"}, and leave ${name}. A message stays if its queue is missing or full, or if you may ` +
      "not write to it. If this member stops meanwhile, a message may be in both queues.";
    if (!(await agreed(text, loss, "Move nothing"))) return;
    outcome.replaceChildren(element("p", {}, "Messages are being moved."));
    await told(outcome, async () => redriven(await call("POST", `${path}/redrive`, only ? { only } : {}), name));
    look();
  };
  const goes = target === undefined ? "This queue has no dead-letter target: what dies here is dropped." :
    target ? `What dies here goes to the exchange ${target}, with the routing key ${key}.` : "What dies here goes to the queue ";
  return section("Dead letters",
    element("p", {}, goes, ...(target === "" ? [link(key, "queue", key), "."] : [])),
    element("p", {}, "If this queue is the target of others, its messages can be moved back to the queues where they died. ",
      element("button", { type: "button", onclick: look }, "Look for dead letters")),
    found, outcome);
}

function waiting_letters(found, redrive) {
  const total = found.groups.reduce((sum, each) => sum + each.messages, 0) + found.in_other_groups;
  const scope = found.is_all ? "" : `at least `;
  if (!total) {
    return [element("p", {}, found.is_all ? "No ready message is a dead letter." :
      `None of the first ${number.format(found.looked_at)} messages is a dead letter.`)];
  }
  const button = (only, text, counted) => element("button", { type: "button", onclick: () => redrive(only, text, counted) }, text);
  const rows = found.groups.map((each) => [each.reason.replaceAll("_", " "), link(each.queue, "queue", each.queue), each.messages,
    button(each.queue, `Move back to ${each.queue}`, `The dead letters of ${each.queue} (${scope}${messages(each.messages)} a moment ago)`)]);
  return [
    table(found.is_all ? "Dead letters that are ready" : `Dead letters among the first ${messages(found.looked_at)}`,
      [["reason of the last death"], ["died in"], ["messages", "number"], ["redrive"]], rows),
    ...(found.in_other_groups ? [element("p", { class: "quiet" }, `${messages(found.in_other_groups)} more, of other queues or reasons.`)] : []),
    ...(found.without_history ? [element("p", { class: "quiet" }, `${messages(found.without_history)} without a history stay here.`)] : []),
    element("p", {}, button("", "Move all back", `All dead letters (${scope}${messages(total)} a moment ago)`)),
  ];
}

function redriven(found, name) {
  const lines = [
    ...found.moved.map((each) => element("li", { class: "good" }, `${messages(each.messages)} moved to ${each.queue}`)),
    ...found.left.map((each) => element("li", {}, `${messages(each.messages)} stayed: ${each.reason}`)),
    ...found.in_doubt.map((each) => element("li", { class: "bad" },
      `${messages(each.messages)} in doubt: in ${each.queue}, in ${name} or in both`)),
  ];
  if (!found.is_complete) lines.push(element("li", {}, "The redrive ended early; there may be more."));
  return [element("ul", {}, ...(lines.length ? lines : [element("li", {}, "There was nothing to move.")]))];
}

// ---- waiting messages

function selector_console(path, info, selector) {
  const output = element("div", { "aria-live": "polite" });
  const field = element("input", { id: "selector", class: "wide", value: selector, autocomplete: "off", spellcheck: "false" });
  const ask = async () => {
    try {
      const found = await call("GET", `${path}/messages?limit=10&selector=${encodeURIComponent(field.value)}`);
      const rows = found.messages.map((each) => [
        each.sequence, each.message.body ?? `${each.message.body_base64} (base64)`, JSON.stringify(each.message.application_properties || {}),
      ]);
      output.replaceChildren(table(`The first ${rows.length} matching messages`, [["sequence", "number"], ["body"], ["application properties"]], rows));
    } catch (error) {
      const column = Number(error.metadata && error.metadata.column) || 0;
      const caret = column ? [element("pre", {}, `${field.value}\n${" ".repeat(column - 1)}^`)] : [];
      output.replaceChildren(problem(error), ...caret);
    }
  };
  const form = element("form", {
    onsubmit: (event) => {
      event.preventDefault();
      const wanted = field.value ? "?selector=" + encodeURIComponent(field.value) : "";
      history.replaceState(null, "", `#/queue/${encodeURIComponent(info.name)}${wanted}`);
      ask();
    },
  }, element("div", {}, element("label", { for: "selector" }, "Selector (empty: every message)"), field), element("button", {}, "Browse"));
  if (selector) ask();
  return section("Waiting messages", form, output);
}

function dangers(name, path, info) {
  const output = element("div", { "aria-live": "polite" });
  const button = (text, loss, act) => element("button", {
    type: "button",
    class: "danger",
    onclick: async () => {
      if (await agreed(text, loss, "Keep everything", "danger")) await told(output, act);
    },
  }, text);
  const waiting = number.format(info.ready + info.delayed + info.dead);
  return section("Remove",
    element("p", { class: "buttons" },
      button(`Purge ${name}`, `The waiting messages are lost (${waiting} of them a moment ago). Checked-out messages stay.`, async () => {
        const done = await call("POST", `${path}/purge`, {});
        return [element("p", {}, `${number.format(done.message_count)} messages were removed.`)];
      }),
      button(`Delete ${name}`, `The queue and all of its messages are lost (${waiting} waiting a moment ago).`, async () => {
        await call("DELETE", path);
        location.hash = "#/queues";
      })),
    output);
}

function agreed(text, loss, no, kind) {
  return new Promise((decide) => {
    const dialog = element("dialog", { "aria-labelledby": "question" },
      element("h2", { id: "question" }, `${text}?`), element("p", {}, loss),
      element("form", { method: "dialog" }, element("button", { value: "no" }, no), element("button", { value: "yes", class: kind || null }, text)));
    dialog.addEventListener("close", () => {
      decide(dialog.returnValue === "yes");
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

async function exchanges() {
  const [found, bound] = await Promise.all([call("GET", "/exchanges"), call("GET", "/bindings")]);
  const rows = found.exchanges.map((each) => [each.name, each.type, each.bindings]);
  const bindings = bound.bindings.map((each) => [
    each.source, each.queue !== undefined ? link(each.queue, "queue", each.queue) : `exchange ${each.exchange}`,
    each.routing_key, Object.keys(each.arguments).length ? JSON.stringify(each.arguments) : "",
  ]);
  return {
    title: "Exchanges",
    elements: [
      table("Exchanges", [["name"], ["type"], ["bindings", "number"]], rows),
      table("Bindings", [["from"], ["to"], ["routing key"], ["arguments"]], bindings),
      ...(bound.next_after ? [element("p", { class: "quiet" }, "There are more; `quorum bindings list` shows all.")] : []),
    ],
  };
}

async function policies() {
  const found = await call("GET", "/policies");
  const rows = found.policies.map((each) => [each.name, each.pattern, each.priority, JSON.stringify(each.arguments)]);
  return { title: "Policies", elements: [table("Policies", [["name"], ["pattern"], ["priority", "number"], ["arguments"]], rows)] };
}

async function users() {
  const found = await call("GET", "/users");
  const rows = found.users.map((each) => [
    each.user, each.administers ? "administers" : each.monitors ? "monitors" : "", each.configure, each.write, each.read, each.queues,
  ]);
  const headings = [["user"], ["cluster"], ["configure"], ["write"], ["read"], ["queues", "number"]];
  return { title: "Users", elements: [table("Users and their permissions", headings, rows)] };
}

const VIEWS = new Map(Object.entries({ "": overview, raft, queues, queue, exchanges, policies, users }));

// ---- showing a view, and following what changes

async function draw() {
  const mine = ++drawn;
  if (watching) watching.abort();
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?");
  let view;
  let name = "";
  try {
    const [first, ...rest] = where.split("/").map(decodeURIComponent);
    name = first;
    const wanted = VIEWS.get(name);
    if (!wanted) throw new Error(`There is no page ${name}.`);
    view = await wanted(new URLSearchParams(query || ""), ...rest);
  } catch (error) {
    view = { title: "Not shown", elements: [problem(error)] };
  }
  if (mine !== drawn) return;
  for (const each of document.querySelectorAll("header nav a")) {
    const is_here = each.getAttribute("href") === "#/" + (name === "queue" ? "queues" : name);
    if (is_here) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  document.title = `${view.title} - Quorum`;
  main.replaceChildren(element("h1", {}, view.title), ...view.elements);
  if (mine > 1 && (document.activeElement === document.body || document.activeElement.closest("header nav"))) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  follow(mine, view);
}

// What the line at the top says after an event.
function condition(event) {
  const gone = event.cluster.members.filter((each) => !each.reachable).map((each) => each.name);
  const parts = [];
  if (event.problem) parts.push(`Figures of queues are not up to date: ${event.problem}`);
  if (gone.length) parts.push(`Not reachable: ${gone.join(", ")}.`);
  return parts.length ? parts.join(" ") : "Up to date.";
}

function say(text) {
  if (state.textContent === text) return; // a screen reader would say it again
  state.textContent = text;
  state.className = text === "Up to date." ? "" : "bad";
}

// Returns when the page can be seen: a hidden one costs the member nothing.
async function seen() {
  while (document.hidden) {
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}

async function follow(mine, view) {
  while (mine === drawn) {
    await seen();
    if (mine !== drawn) return;
    watching = new AbortController();
    let why = "The member does not answer; trying again.";
    try {
      const answer = await fetch(API + "/events" + (view.events || ""), { signal: watching.signal });
      if (!answer.ok) {
        const found = await answer.json();
        why = `${found.error.message}; trying again.`;
        throw new Error(why);
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          if (mine !== drawn || !part.startsWith("data: ")) continue;
          const event = JSON.parse(part.slice(6));
          say(condition(event));
          if (view.onEvent) view.onEvent(event);
        }
      }
    } catch {
      // told below, unless another view has begun
    }
    if (mine !== drawn) return;
    if (document.hidden) continue;
    say(why);
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const is_dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = is_dark ? "light" : "dark";
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden && watching) watching.abort();
});
addEventListener("hashchange", draw);
draw();
