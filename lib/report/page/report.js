'use strict';
// All that comes from runs is put in by textContent or as numbers: never as markup.
const data = JSON.parse(document.getElementById('data').textContent);
const colours = ['#0969da', '#bc4c00', '#1a7f37', '#8250df', '#bf3989', '#9a6700', '#0a7d91', '#57606a'];
const dashes = ['', '7 4', '2 3', '10 3 2 3', '1 5'];
const view = { smoothing: 0.6, from: null, to: null, log: false, by: 'step', hidden: new Set() };
const SVG = 'http://www.w3.org/2000/svg';
const $ = id => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function svg(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}

const colourOf = run => colours[data.runs.indexOf(run) % colours.length];
const finite = value => typeof value === 'number' && Number.isFinite(value);

function shown(value) {
  if (!finite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3);
  return String(+value.toPrecision(5));
}

function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) { value /= 1024; ++unit; }
  return +value.toPrecision(4) + ' ' + units[unit];
}

// Charts: for each a function of a run that gives its lines, {name, x, y, dots}.
function steps(run, key, name, more) {
  const y = run.steps[key];
  return y && y.some(finite) ? [{ name, x: run.steps[view.by], y, smooth: true, ...more }] : [];
}

function evaluations(run, key) {
  return run.evaluations.map((set, at) => ({ name: set.name, x: set[view.by], y: set[key], dots: true, dash: dashes[(at + 1) % dashes.length] }))
    .filter(line => line.y.some(finite));
}

const charts = [
  { title: 'Loss', lines: run => [...steps(run, 'loss', 'training'), ...evaluations(run, 'loss')], logs: true },
  { title: 'Perplexity', lines: run => evaluations(run, 'perplexity'), logs: true },
  { title: 'Token accuracy', lines: run => evaluations(run, 'accuracy') },
  { title: 'Learning rate', lines: run => steps(run, 'lr', 'learning rate', { smooth: false }) },
  { title: 'Gradient norm, before clipping', lines: run => steps(run, 'grad_norm', 'gradient norm'), logs: true },
  { title: 'Tokens a second', lines: run => steps(run, 'tokens_per_second', 'tokens/s') },
  { title: 'Seconds a step', lines: run => steps(run, 'step_seconds', 'step') },
  { title: 'Waiting: data, and other ranks (exposed communication), seconds a step', lines: run => [
    ...steps(run, 'data_wait_seconds', 'data'), ...steps(run, 'exposed_communication_seconds', 'other ranks', { dash: dashes[1] })] },
  { title: 'Loss scale', lines: run => steps(run, 'loss_scale', 'loss scale', { smooth: false }), logs: true },
  { title: 'Memory of rank 0 by category', unit: bytes, zero: true, lines: run => Object.keys(run.memory).map((name, at) =>
    ({ name, x: run.steps[view.by], y: run.memory[name], dash: dashes[at % dashes.length] })) },
];

// Exponential mean over points, corrected for its start; what is not finite is left out.
function smoothed(y) {
  const keep = view.smoothing;
  let mean = 0, weight = 0;
  return y.map(value => {
    if (!finite(value)) return null;
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return mean / weight;
  });
}

function ticks(low, high, count) {
  const raw = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw) || raw;
  const all = [];
  for (let at = Math.ceil(low / step); at * step <= high && all.length < 40; ++at) all.push(at * step);
  return all;
}

function range(values, padding) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (finite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return null;
  const spread = high - low > Math.max(Math.abs(low), Math.abs(high)) * 1e-9 ? (high - low) * padding : Math.max(Math.abs(high) * 0.1, 0.5);
  return [low - spread, high + spread];
}

function visibleRuns() { return data.runs.filter(run => !view.hidden.has(run)); }

function xRange() {
  const all = [];
  for (const run of visibleRuns())
    for (const x of [run.steps[view.by], ...run.evaluations.map(set => set[view.by])]) if (x.length) all.push(x[0], x[x.length - 1]);
  const full = range(all, 0) || [0, 1];
  return view.from === null ? full : [view.from, view.to];
}

const height = 280, left = 66, right = 12, top_ = 10, bottom = 34;

function draw(chart) {
  const lines = visibleRuns().flatMap(run => chart.lines(run).map(line => ({ ...line, run, drawn: line.smooth ? smoothed(line.y) : line.y })));
  chart.box.hidden = lines.length === 0;
  if (!lines.length) return;
  const width = Math.max(260, chart.place.clientWidth || 640);
  // Runs differ by colour and their lines by dashes; of one run the lines differ by colour.
  lines.forEach((line, at) => {
    line.colour = data.runs.length > 1 ? colourOf(line.run) : colours[at % colours.length];
    if (data.runs.length === 1) line.dash = '';
  });
  const [x0, x1] = xRange(), log = view.log && chart.logs;
  const scale = value => !finite(value) || (log && value <= 0) ? null : log ? Math.log10(value) : value;
  const values = chart.zero ? [0] : [];
  for (const line of lines) line.x.forEach((x, i) => { if (x >= x0 && x <= x1) { values.push(scale(line.drawn[i])); } });
  const [y0, y1] = range(values, 0.06) || [0, 1];
  const px = x => left + (width - left - right) * (x - x0) / (x1 - x0 || 1);
  const py = y => height - bottom - (height - top_ - bottom) * (y - y0) / (y1 - y0);
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': chart.title });
  const clip = 'clip' + charts.indexOf(chart);
  const area = svg('clipPath', { id: clip });
  area.append(svg('rect', { x: left, y: top_, width: width - left - right, height: height - top_ - bottom }));
  picture.append(area);
  const size = chart.unit ? Math.pow(1024, Math.floor(Math.log2(Math.max(y1, 1)) / 10)) : 1;
  for (const tick of ticks(y0 / size, y1 / size, 5).map(tick => tick * size)) {
    picture.append(svg('line', { x1: left, x2: width - right, y1: py(tick), y2: py(tick), stroke: 'var(--grid)' }));
    const value = log ? Math.pow(10, tick) : tick;
    picture.append(svg('text', { x: left - 6, y: py(tick) + 4, 'text-anchor': 'end' }, chart.unit ? chart.unit(value) : shown(+value.toPrecision(4))));
  }
  for (const tick of ticks(x0, x1, 6))
    picture.append(svg('text', { x: px(tick), y: height - bottom + 17, 'text-anchor': 'middle' }, shown(tick)));
  picture.append(svg('text', { x: (left + width - right) / 2, y: height - 3, 'text-anchor': 'middle' }, view.by === 'step' ? 'step' : 'tokens trained on'));
  const inside = svg('g', { 'clip-path': `url(#${clip})` });
  for (const line of lines) {
    const colour = line.colour;
    const look = { fill: 'none', stroke: colour, 'stroke-linejoin': 'round' };
    if (line.smooth && view.smoothing > 0) inside.append(svg('path', { ...look, d: path(line.x, line.y, scale, px, py), 'stroke-opacity': 0.22 }));
    inside.append(svg('path', { ...look, class: 'series', d: path(line.x, line.drawn, scale, px, py), 'stroke-width': 2, 'stroke-dasharray': line.dash || '' }));
    line.x.forEach((x, i) => {
      const y = scale(line.y[i]);
      if (line.dots && y !== null) inside.append(svg('circle', { cx: px(x), cy: py(y), r: 3, fill: colour }));
      if (y === null && line.y[i] !== null && !finite(line.y[i]))
        inside.append(svg('polygon', { points: `${px(x) - 4},${top_} ${px(x) + 4},${top_} ${px(x)},${top_ + 8}`, fill: 'var(--bad)', class: 'not-finite' }));
    });
  }
  const cursor = svg('line', { y1: top_, y2: height - bottom, stroke: 'var(--soft)', visibility: 'hidden' });
  const band = svg('rect', { y: top_, height: height - top_ - bottom, fill: 'var(--soft)', 'fill-opacity': 0.2, visibility: 'hidden' });
  picture.append(inside, cursor, band);
  chart.keys.replaceChildren(...lines.map(line => {
    const key = element('span', (data.runs.length > 1 ? line.run.name + ': ' : '') + line.name);
    const mark = element('i');
    mark.style.borderTopColor = line.colour;
    mark.style.borderTopStyle = line.dash ? 'dashed' : 'solid';
    key.prepend(mark);
    return key;
  }));
  listen(chart, picture, { lines, px, x0, x1, cursor, band, width });
  chart.place.replaceChildren(picture);
}

function path(xs, ys, scale, px, py) {
  let d = '', pen = false;
  for (let i = 0; i < xs.length; ++i) {
    const y = scale(ys[i]);
    if (y === null) { pen = false; continue; }
    d += (pen ? 'L' : 'M') + px(xs[i]).toFixed(1) + ' ' + py(y).toFixed(1);
    if (!pen && (i + 1 === xs.length || scale(ys[i + 1]) === null)) d += 'h1';
    pen = true;
  }
  return d;
}

function nearest(xs, x) {
  let best = -1;
  xs.forEach((value, i) => { if (best < 0 || Math.abs(value - x) < Math.abs(xs[best] - x)) best = i; });
  return best;
}

// Moving shows values; dragging chooses the steps that all charts show, a double click all of them.
function listen(chart, picture, drawn) {
  let start = null;
  const place = event => {
    const box = picture.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * drawn.width;
    return drawn.x0 + (drawn.x1 - drawn.x0) * Math.min(1, Math.max(0, (at - left) / (drawn.width - left - right)));
  };
  picture.addEventListener('pointerdown', event => { start = place(event); });
  picture.addEventListener('pointermove', event => {
    const x = place(event);
    drawn.cursor.setAttribute('visibility', 'visible');
    drawn.cursor.setAttribute('x1', drawn.px(x));
    drawn.cursor.setAttribute('x2', drawn.px(x));
    if (start !== null) {
      drawn.band.setAttribute('visibility', 'visible');
      drawn.band.setAttribute('x', Math.min(drawn.px(start), drawn.px(x)));
      drawn.band.setAttribute('width', Math.abs(drawn.px(start) - drawn.px(x)));
    }
    const said = drawn.lines.map(line => {
      const i = nearest(line.x, x);
      const value = line.y[i];
      const label = (data.runs.length > 1 ? line.run.name + ' ' : '') + line.name;
      return i < 0 ? '' : `${view.by === 'step' ? 'step ' : ''}${shown(line.x[i])}  ${label}: ${chart.unit && finite(value) ? chart.unit(value) : shown(value)}`;
    });
    chart.tip.textContent = said.filter(Boolean).join('\n');
    chart.tip.hidden = false;
    const box = picture.getBoundingClientRect(), at = event.clientX - box.left;
    chart.tip.style.top = '46px';
    chart.tip.style.left = at < box.width / 2 ? at + 22 + 'px' : '';
    chart.tip.style.right = at < box.width / 2 ? '' : box.width - at + 22 + 'px';
  });
  picture.addEventListener('pointerleave', () => { chart.tip.hidden = true; drawn.cursor.setAttribute('visibility', 'hidden'); });
  picture.addEventListener('pointerup', event => {
    const end = place(event), from = start;
    start = null;
    drawn.band.setAttribute('visibility', 'hidden');
    if (from === null || Math.abs(drawn.px(end) - drawn.px(from)) < 8) return;
    zoom(Math.min(from, end), Math.max(from, end));
  });
  picture.addEventListener('dblclick', () => zoom(null, null));
}

function zoom(from, to) {
  view.from = from;
  view.to = to;
  $('reset').hidden = from === null;
  drawAll();
}

function drawAll() { charts.forEach(draw); }

function makeCharts() {
  for (const chart of charts) {
    chart.box = element('section', null, 'chart');
    chart.place = element('div');
    chart.keys = element('div', null, 'keys');
    chart.tip = element('div', null, 'tip');
    chart.tip.hidden = true;
    chart.box.append(element('h3', chart.title), chart.place, chart.keys, chart.tip);
    $('charts').append(chart.box);
  }
}

function makeRuns() {
  for (const run of data.runs) {
    const box = element('section', null, 'run');
    box.style.borderLeftColor = colourOf(run);
    const label = element('label'), check = element('input');
    check.type = 'checkbox';
    check.checked = true;
    check.addEventListener('change', () => { check.checked ? view.hidden.delete(run) : view.hidden.add(run); drawAll(); });
    label.append(check, ' ', run.name);
    box.append(label);
    for (const line of run.facts) box.append(element('div', line, 'soft'));
    if (run.unreadable) box.append(element('div', `${run.unreadable} unreadable lines were passed over (a killed run leaves a torn one)`, 'bad'));
    if (run.mean_of > 1) box.append(element('div', `each point is the mean of up to ${run.mean_of} steps`, 'soft'));
    $('runs').append(box);
  }
}

// A row a prompt, a column a step.
function makeTexts() {
  for (const run of data.runs) {
    if (!run.texts.length) continue;
    $('texts').hidden = false;
    const asked = [...new Set(run.texts.map(text => text.prompt))], when = [...new Set(run.texts.map(text => text.step))];
    const table = element('table', null, 'texts'), head = element('tr');
    head.append(element('th', 'prompt'), ...when.map(step => element('th', step === 0 ? 'before training' : `after step ${step}`)));
    table.append(head);
    for (const prompt of asked) {
      const row = element('tr');
      row.append(element('td', prompt, 'prompt'));
      for (const step of when) {
        const found = run.texts.find(text => text.step === step && text.prompt === prompt);
        row.append(element('td', found ? found.answer : ''));
      }
      table.append(row);
    }
    const scroll = element('div', null, 'scroll');
    scroll.append(table);
    if (data.runs.length > 1) $('texts').append(element('h3', run.name));
    $('texts').append(scroll);
    if (run.texts_left_out) $('texts').append(element('div', `${run.texts_left_out} more texts are left out here: samples.jsonl has them all`, 'soft'));
  }
}

function makeConfig() {
  const keys = [...new Set(data.runs.flatMap(run => Object.keys(run.config)))];
  const values = key => data.runs.map(run => key in run.config ? run.config[key] : '');
  const other = keys.filter(key => new Set(values(key)).size > 1);
  const tableOf = shownKeys => {
    const table = element('table'), head = element('tr'), scroll = element('div', null, 'scroll');
    head.append(element('th', 'key'), ...data.runs.map(run => element('th', run.name)));
    table.append(head);
    for (const key of shownKeys) {
      const row = element('tr', null, other.includes(key) ? 'differs' : '');
      row.append(element('td', key), ...values(key).map(value => element('td', value)));
      table.append(row);
    }
    scroll.append(table);
    return scroll;
  };
  if (other.length) $('keys').append(element('div', 'what differs:', 'soft'), tableOf(other));
  if (keys.length) {
    const fold = element('details');
    fold.append(element('summary', `all ${keys.length} keys`), tableOf(keys));
    $('keys').append(fold);
  }
  for (const run of data.runs) {
    if (!run.config_yaml) continue;
    const fold = element('details');
    fold.append(element('summary', `${data.runs.length > 1 ? run.name + ': ' : ''}config.yaml, with where each value came from`), element('pre', run.config_yaml));
    $('config').append(fold);
  }
}

function makeWarnings() {
  for (const run of data.runs) {
    if (!run.warnings.length) continue;
    $('warnings').hidden = false;
    if (data.runs.length > 1) $('warnings').append(element('h3', run.name));
    $('warnings').append(element('pre', run.warnings.join('\n')));
    if (run.warnings_left_out) $('warnings').append(element('div', `${run.warnings_left_out} more are left out here: logs/rank-0.log has them all`, 'soft'));
  }
}

function makeControls() {
  $('smoothing').addEventListener('input', event => { view.smoothing = +event.target.value; $('smoothing-is').textContent = event.target.value; drawAll(); });
  $('log').addEventListener('change', event => { view.log = event.target.checked; drawAll(); });
  $('by').addEventListener('change', event => { view.by = event.target.value; zoom(null, null); });
  $('reset').addEventListener('click', () => zoom(null, null));
  $('theme').addEventListener('click', () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  });
}

$('made').textContent = data.made;
makeRuns();
makeCharts();
makeControls();
makeTexts();
makeConfig();
makeWarnings();
drawAll();
addEventListener('resize', drawAll);
