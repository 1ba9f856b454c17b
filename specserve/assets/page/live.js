// What the service does now, asked for once a second: figures with their lines, state, processes.

const HISTORY = 60;  // looks that a line has
const PERIOD_MS = 1000;
const PATIENCE_MS = 5000;
const WELL = { ready: "good", attached: "good", busy: "good", idle: "good", "target lost": "bad", ended: "bad", lost: "bad", failing: "bad" };

// By name of a tile: its number in a look at the service, the least height of its line, and more.
const TILES = {
  throughput: {
    of: (now) => now.figures?.generated_tokens_per_s ?? null, digits: 1, least: 1, isNothing: (value) => !value,
    more: (now) => `${figure(now.figures?.prompt_tokens_per_s, 0)} tokens/s of prompts, a round takes ${figure(1e3 * now.round_s, 1)} ms`,
  },
  accept: {
    of: (now) => now.figures?.accept_len ?? null, digits: 2, least: 2,
    more: (now) => `${percent(now.figures?.accept_rate)} of drafts stood`,
  },
  hits: {
    of: (now) => now.figures?.hit_rate ?? null, digits: 0, least: 1, scale: 100,
    more: (now) => now.processes.some((each) => each.role === "draft")
      ? `${figure(now.figures?.fan_out, 1)} outcomes prepared` : "no draft process",
  },
  verify: {
    of: (now) => now.figures?.verify_len ?? null, digits: 2, least: 1,
    more: (now) => now.gamma ? `drafted, of ${now.gamma} at most` : "nothing drafts",
  },
  running: {
    of: (now) => now.num_running, digits: 0, least: 1, isNothing: (value) => !value,
    more: (now) => `${now.num_waiting} waiting, KV cache ${percent(now.kv_cache_usage)}`,
  },
};

const lines = Object.fromEntries(Object.keys(TILES).map((name) => [name, []]));
let rates = [];  // accepted by position, of when something was drafted last
let looks = 0;

function showTile(name, now) {
  const { of, digits, least, scale = 1, isNothing, more } = TILES[name];
  const tile = document.querySelector(`[data-figure="${name}"]`);
  const value = of(now), line = lines[name];
  line.push(value);
  if (line.length > HISTORY) line.shift();
  const isPast = value === null;
  const shown = isPast ? line.findLast((each) => each !== null) : value;
  tile.classList.toggle("past", isPast || Boolean(isNothing?.(value)));
  tile.querySelector("b").textContent = figure(shown === undefined ? null : scale * shown, digits);
  if (!isPast || looks === 1) tile.querySelector(".more").textContent = more(now);
  const title = tile.querySelector("h2").textContent;
  drawLine(tile.querySelector("svg"), line, least, `${title} over the last ${line.length} seconds`);
}

function showState(words, well, reason) {
  byId("state").textContent = words;
  byId("state").dataset.well = well;
  byId("banner").hidden = !reason;
  byId("banner").dataset.well = well;
  if (byId("banner").textContent !== reason) byId("banner").textContent = reason;
}

function showAbout(now) {
  byId("model").textContent = now.model || "loading";
  const running = now.mode === now.speculation || !now.model ? now.mode : `${now.mode} (${now.speculation})`;
  const words = [`topology ${now.topology}`, `speculation ${running}`, now.drafter && `drafter ${now.drafter}`];
  byId("about").replaceChildren(...words.filter(Boolean).map((each) => written("span", "", each)));
  byId("version").textContent = `specserve ${now.version}`;
  byId("uptime").textContent = `up ${duration(now.uptime_s)}, ${now.num_generated_tokens.toLocaleString("en")} tokens made`;
  if (byId("as-chat-label").hidden && now.has_chat_template) byId("as-chat-label").hidden = false;
}

function duration(seconds) {
  const parts = [seconds / 3600, (seconds / 60) % 60, seconds % 60];
  return parts.map((each) => String(Math.floor(each)).padStart(2, "0")).join(":");
}

function bytes(count) {
  if (count === undefined) return "";
  const units = ["B/s", "kB/s", "MB/s", "GB/s"];
  let unit = 0;
  for (; count >= 1000 && unit < units.length - 1; unit++) count /= 1000;
  return `${Number(count.toPrecision(3))} ${units[unit]}`;
}

function showProcesses(now) {
  let draft = 0;
  byId("processes").tBodies[0].replaceChildren(...now.processes.map((each) => {
    const row = document.createElement("tr");
    row.dataset.process = each.name;
    row.dataset.well = WELL[each.state] ?? (each.is_well ? "good" : "waiting");
    const name = document.createElement("td");
    name.append(written("i", "dot"), each.name);
    if (each.detail) name.append(written("small", "", each.detail));
    const index = each.role === "draft" ? draft++ : -1;
    row.append(
      name, written("td", "", each.state), written("td", "number", each.pid ?? "–"),
      written("td", "number link", bytes(now.figures?.sent_per_s[index])),
      written("td", "number link", bytes(now.figures?.received_per_s[index])),
    );
    return row;
  }));
  for (const cell of byId("processes").querySelectorAll(".link")) cell.hidden = !draft;
}

function show(now) {
  looks++;
  document.body.dataset.looks = looks;
  showState(now.state, WELL[now.state] ?? "waiting", now.reason);
  showAbout(now);
  for (const name of Object.keys(TILES)) showTile(name, now);
  if (now.figures?.accept_rates.length) rates = now.figures.accept_rates;
  drawCalibration(byId("calibration"), now.calibration, rates);
  const tellsNone = !now.calibration.length && rates.length > 0;
  byId("unjudged").hidden = !tellsNone;
  for (const each of document.querySelectorAll(".judged")) each.hidden = tellsNone;
  showProcesses(now);
}

async function look() {
  try {
    show(await (await ask("/status", null, AbortSignal.timeout(PATIENCE_MS))).json());
  } catch (error) {
    const words = error.status === 401 ? "needs a key" : error.status ? "refuses" : "unreachable";
    showState(words, "bad", error.status === 401 ? "" : error.message);
    for (const tile of document.querySelectorAll(".tile")) tile.classList.add("past");
  }
  setTimeout(look, PERIOD_MS);
}
