"use strict";
// The management page of one member. Every view is named by the part of the URL behind #. All data comes from this
// member: /api/v1, as docs/http.md describes it, and /api/v1/events for what changes.

const main = document.getElementById("main");
const state = document.getElementById("state");
const number = new Intl.NumberFormat("en");
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

function table(caption, columns, rows) {
  const head = columns.map(([title, kind]) => element("th", { scope: "col", class: kind || null }, title));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell, place) => element("td", { class: columns[place][1] || null },
      typeof cell === "number" ? number.format(cell) : cell ?? ""))));
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

function link(text, ...parts) {
  return element("a", { href: "#/" + parts.map(encodeURIComponent).join("/") }, text);
}

function problem(error) {
  return element("p", { class: "bad", role: "alert" }, error.message);
}

async function call(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch("/api/v1" + path, options);
  } catch {
    throw new Error("The member does not answer.");
  }
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error.message), found.error);
  return found;
}

// ---- views: each returns its elements, and may return a function that takes events

async function overview() {
  const status = await call("GET", "/cluster");
  const place = element("div");
  const show = (found) => place.replaceChildren(...cluster(found));
  show(status);
  return { title: "Overview", elements: [place], onEvent: (event) => show(event.cluster) };
}

function cluster(status) {
  const members = status.members.map((each) => [
    each.name,
    each.client_address,
    element("span", { class: each.reachable ? "good" : "bad" }, each.reachable ? "reachable" : "not reachable"),
    each.drained ? "drained" : each.joining ? "joining" : "",
  ]);
  const groups = status.groups.map((each) => [
    each.group === 0 ? "system" : String(each.group),
    each.leader || element("span", { class: "bad" }, "none"),
    each.term,
    each.commit_index,
    each.commit_index - each.applied_index,
  ]);
  return [
    element("p", {}, `This is ${status.answering_node}: ${status.standing}.`),
    table("Members", [["name"], ["clients"], ["connection from here"], ["state"]], members),
    table("Raft groups", [["group"], ["leader"], ["term", "number"], ["committed entries", "number"], ["not yet applied here", "number"]], groups),
  ];
}

async function queues(parameters) {
  const prefix = parameters.get("prefix") || "";
  const after = parameters.get("after") || "";
  const found = await call("GET", `/queues?limit=100&prefix=${encodeURIComponent(prefix)}&after=${encodeURIComponent(after)}`);
  const rows = found.queues.map((each) => [
    link(each.name, "queue", each.name), each.ready, each.checked_out, each.delayed, each.dead, each.consumers, each.leader || "none",
  ]);
  const field = element("input", { id: "prefix", name: "prefix", value: prefix, autocomplete: "off" });
  const form = element("form", {
    role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      location.hash = "#/queues?prefix=" + encodeURIComponent(field.value);
    },
  }, element("div", {}, element("label", { for: "prefix" }, "Names that begin with"), field), element("button", {}, "Show"));
  const last = found.queues.length ? found.queues[found.queues.length - 1].name : "";
  const pages = element("p", {});
  if (after) pages.append(element("a", { href: "#/queues?prefix=" + encodeURIComponent(prefix) }, "First page"), " ");
  if (found.queues.length === 100) {
    pages.append(element("a", { href: `#/queues?prefix=${encodeURIComponent(prefix)}&after=${encodeURIComponent(last)}` }, "Next page"));
  }
  const columns = [["name"], ["ready", "number"], ["checked out", "number"], ["delayed", "number"], ["dead", "number"], ["consumers", "number"], ["leader"]];
  return { title: "Queues", elements: [form, table(after ? `Queues after ${after}` : "Queues", columns, rows), pages] };
}

async function queue(parameters, name) {
  const path = "/queues/" + encodeURIComponent(name);
  const found = await call("GET", path);
  const place = element("div");
  const show = (described) => place.replaceChildren(...details(described));
  show(found);
  return {
    title: `Queue ${name}`,
    elements: [place, selectorConsole(path, found.queue, parameters.get("selector") || ""), dangers(name, path, found.queue)],
    events: "?queue=" + encodeURIComponent(name),
    onEvent: (event) => event.queue && show(event.queue),
  };
}

function details(described) {
  const info = described.queue;
  const counts = [["ready", info.ready], ["checked out", info.checked_out], ["delayed", info.delayed], ["dead", info.dead]];
  const left = Object.entries(info.totals || {});
  const settings = Object.entries(info.effective_arguments).map(([key, value]) => [key, JSON.stringify(value)]);
  const consumers = described.consumers.map((each) => [
    each.consumer_tag, each.node, each.selector || (each.filtered ? "a property filter" : ""), each.credit, each.checked_out,
  ]);
  return [
    element("p", {}, `Raft group ${info.group}, led by ${info.leader || "nobody"}` + (info.policy ? `; policy ${info.policy}` : "")),
    table("Messages now", [["state"], ["messages", "number"]], counts),
    ...(info.dead_letter_problem ? [element("p", { class: "bad" }, info.dead_letter_problem)] : []),
    table("Since it was declared", [["event"], ["messages", "number"]], left.map(([key, value]) => [key.replaceAll("_", " "), value])),
    table("Arguments", [["argument"], ["value"]], settings),
    table("Consumers", [["tag"], ["member"], ["selector"], ["credit", "number"], ["checked out", "number"]], consumers),
  ];
}

function selectorConsole(path, info, selector) {
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
  return element("section", { "aria-labelledby": "console" }, element("h2", { id: "console" }, "Waiting messages"), form, output);
}

function dangers(name, path, info) {
  const output = element("div", { "aria-live": "polite" });
  const button = (text, loss, act) => element("button", {
    type: "button",
    class: "danger",
    onclick: async () => {
      if (!(await agreed(text, loss))) return;
      try {
        await act();
      } catch (error) {
        output.replaceChildren(problem(error));
      }
    },
  }, text);
  const waiting = number.format(info.ready + info.delayed + info.dead);
  return element("section", { "aria-labelledby": "dangers" }, element("h2", { id: "dangers" }, "Remove"),
    element("p", {},
      button(`Purge ${name}`, `The waiting messages are lost (${waiting} of them a moment ago). Checked-out messages stay.`, async () => {
        const done = await call("POST", `${path}/purge`, {});
        output.replaceChildren(element("p", {}, `${number.format(done.message_count)} messages were removed.`));
      }), " ",
      button(`Delete ${name}`, `The queue and all of its messages are lost (${waiting} waiting a moment ago).`, async () => {
        await call("DELETE", path);
        location.hash = "#/queues";
      })),
    output);
}

function agreed(text, loss) {
  return new Promise((decide) => {
    const dialog = element("dialog", { "aria-labelledby": "question" },
      element("h2", { id: "question" }, `${text}?`), element("p", {}, loss),
      element("form", { method: "dialog" }, element("button", { value: "no" }, "Keep everything"), element("button", { value: "yes", class: "danger" }, text)));
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
    each.user, each.administers ? "administers" : each.monitors ? "monitors" : "", each.configure, each.write, each.read,
  ]);
  return { title: "Users", elements: [table("Users and their permissions", [["user"], ["cluster"], ["configure"], ["write"], ["read"]], rows)] };
}

const VIEWS = { "": overview, queues, queue, exchanges, policies, users };

// ---- showing a view, and following what changes

async function draw() {
  const mine = ++drawn;
  if (watching) watching.abort();
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = where.split("/").map(decodeURIComponent);
  for (const each of document.querySelectorAll("nav a")) {
    const is_here = each.getAttribute("href") === "#/" + (name === "queue" ? "queues" : name);
    if (is_here) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  let view;
  try {
    const wanted = VIEWS[name];
    if (!wanted) throw new Error(`There is no page ${name}.`);
    view = await wanted(new URLSearchParams(query || ""), ...rest);
  } catch (error) {
    view = { title: "Not shown", elements: [problem(error)] };
  }
  if (mine !== drawn) return;
  document.title = `${view.title} - Quorum`;
  main.replaceChildren(element("h1", {}, view.title), ...view.elements);
  if (mine > 1 && (document.activeElement === document.body || document.activeElement.closest("nav"))) main.focus();
  follow(mine, view);
}

async function follow(mine, view) {
  while (mine === drawn) {
    watching = new AbortController();
    try {
      const answer = await fetch("/api/v1/events" + (view.events || ""), { signal: watching.signal });
      if (!answer.ok) throw new Error();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          if (mine !== drawn || !part.startsWith("data: ")) continue;
          state.textContent = "Up to date.";
          if (view.onEvent) view.onEvent(JSON.parse(part.slice(6)));
        }
      }
    } catch {
      // told below, unless another view has begun
    }
    if (mine !== drawn) return;
    state.textContent = "The member does not answer; trying again.";
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const is_dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = is_dark ? "light" : "dark";
});
addEventListener("hashchange", draw);
draw();
