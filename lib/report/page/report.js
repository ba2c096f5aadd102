const dashes = ['', '7 4', '2 3', '10 3 2 3', '1 5'];
const view = { smoothing: 0.6, from: null, to: null, log: false, by: 'step', hidden: new Set() };
const colorOf = run => colors[data.runs.indexOf(run) % colors.length];
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
  // Runs differ by color and their lines by dashes; of one run the lines differ by color.
  lines.forEach((line, at) => {
    line.color = data.runs.length > 1 ? colorOf(line.run) : colors[at % colors.length];
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
    const color = line.color;
    const look = { fill: 'none', stroke: color, 'stroke-linejoin': 'round' };
    if (line.smooth && view.smoothing > 0) inside.append(svg('path', { ...look, d: path(line.x, line.y, scale, px, py), 'stroke-opacity': 0.22 }));
    inside.append(svg('path', { ...look, class: 'series', d: path(line.x, line.drawn, scale, px, py), 'stroke-width': 2, 'stroke-dasharray': line.dash || '' }));
    line.x.forEach((x, i) => {
      const y = scale(line.y[i]);
      if (line.dots && y !== null) inside.append(svg('circle', { cx: px(x), cy: py(y), r: 3, fill: color }));
      if (y === null && line.y[i] !== null && !finite(line.y[i]))
        inside.append(svg('polygon', { points: `${px(x) - 4},${top_} ${px(x) + 4},${top_} ${px(x)},${top_ + 8}`, fill: 'var(--bad)', class: 'not-finite' }));
    });
  }
  const cursor = svg('line', { y1: top_, y2: height - bottom, stroke: 'var(--soft)', visibility: 'hidden' });
  const band = svg('rect', { y: top_, height: height - top_ - bottom, fill: 'var(--soft)', 'fill-opacity': 0.2, visibility: 'hidden' });
  picture.append(inside, cursor, band);
  chart.keys.replaceChildren(...lines.map(line => {
    const key = keyOf((data.runs.length > 1 ? line.run.name + ': ' : '') + line.name, line.color);
    key.firstChild.style.borderTopStyle = line.dash ? 'dashed' : 'solid';
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
    placeTip(chart.tip, picture, event.clientX);
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
    box.style.borderLeftColor = colorOf(run);
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
    const answer = (prompt, step) => (run.texts.find(text => text.step === step && text.prompt === prompt) || { answer: '' }).answer;
    const scroll = table([{ title: 'prompt', className: 'prompt' }, ...when.map(step => ({ title: step === 0 ? 'before training' : `after step ${step}` }))],
      asked.map(prompt => [prompt, ...when.map(step => answer(prompt, step))]));
    scroll.firstChild.className = 'texts';
    if (data.runs.length > 1) $('texts').append(element('h3', run.name));
    $('texts').append(scroll);
    if (run.texts_left_out) $('texts').append(element('div', `${run.texts_left_out} more texts are left out here: samples.jsonl has them all`, 'soft'));
  }
}

// Beyond 15 % the part that is off most is marked.
function makeTimes() {
  for (const run of data.runs) {
    if (!run.times.length) continue;
    $('times').hidden = false;
    const [step, ...parts] = run.times, off = part => Math.abs(part.predicted - part.measured);
    const most = off(step) > 0.15 * step.measured ? parts.reduce((a, b) => off(b) > off(a) ? b : a, parts[0]) : null;
    const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + ' %' : '';
    const shownParts = run.times.filter(part => part.predicted > 0 || part.measured > 0), by = part => part.predicted - part.measured;
    const scroll = table(['rank 0', 'predicted, s', 'measured, s', 'off', 'off, of the step'].map(title => ({ title })),
      shownParts.map(part => [part.part, shown(part.predicted), shown(part.measured), percent(by(part), part.measured), percent(by(part), step.measured)]),
      at => shownParts[at] === most ? 'differs' : '');
    if (data.runs.length > 1) $('times').append(element('h3', run.name));
    $('times').append(scroll);
    const names = Object.keys(run.load), others = names.reduce((sum, name) => sum + run.load[name], 0) >= 5
      ? names.filter(name => run.load[name] > 2).map(name => `${name} took ${run.load[name]} %`) : [];
    $('times').append(element('div', (most ? `most of the difference is in: ${most.part}; ` : '') + (others.length
      ? `meanwhile ${others.join(' and ')} of the cores${most && step.measured > step.predicted ? ', which explains some of it' : ''}`
      : 'other work took less than 5 % of the cores'), 'soft'));
  }
}

function makeConfig() {
  const keys = [...new Set(data.runs.flatMap(run => Object.keys(run.config)))];
  const values = key => data.runs.map(run => key in run.config ? run.config[key] : '');
  const other = keys.filter(key => new Set(values(key)).size > 1);
  const tableOf = shownKeys => table([{ title: 'key' }, ...data.runs.map(run => ({ title: run.name }))],
    shownKeys.map(key => [key, ...values(key)]), at => other.includes(shownKeys[at]) ? 'differs' : '');
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
}

$('made').textContent = data.made;
makeRuns();
makeCharts();
makeControls();
makeTimes();
makeTexts();
makeConfig();
makeWarnings();
drawAll();
addEventListener('resize', drawAll);
