const NS = 1e9;
const total = data.seconds * NS;
const view = { rank: data.ranks[0], from: 0, to: total };
const left = 8, right = 8;
const figures = [];
const partColors = ['#0969da', '#1a7f37', '#57606a', '#8250df', '#bf3989', '#0a7d91', '#9a6700', 'var(--line)'];
const kindColors = ['#0969da', '#bc4c00', '#9a6700', '#1a7f37', '#8250df', '#0a7d91', '#57606a'];
const categoryColors = { parameters: '#0969da', gradients: '#bc4c00', optimizer: '#1a7f37', activations: '#8250df', buckets: '#0a7d91',
  staging: '#9a6700', sums: '#57606a', snapshot: '#bf3989', libraries: '#8c959f' };

function time(ns) {
  if (ns === 0) return '0 s';
  const units = [['s', 1e9], ['ms', 1e6], ['µs', 1e3], ['ns', 1]];
  const [name, size] = units.find(([, size]) => Math.abs(ns) >= size) || units[3];
  return +(ns / size).toPrecision(4) + ' ' + name;
}
const share = (part, whole) => (100 * part / whole).toFixed(1) + ' %';
const nameOf = rank => data.ranks.length > 1 ? `stage ${rank.stage}` : `rank ${rank.rank}`;
const longNameOf = rank => `rank ${rank.rank}${rank.stages > 1 ? `, stage ${rank.stage} of ${rank.stages}` : ''}`;

// drawParts() shows the time by part.
function drawParts() {
  const names = data.ranks[0].parts.map(part => part[0]);
  const used = names.filter((name, at) => data.ranks.some(rank => rank.parts[at][1] > 0));
  const box = element('div', null, 'split');
  for (const rank of data.ranks) {
    const choose = element('button', nameOf(rank)), bar = element('div');
    choose.setAttribute('aria-pressed', rank === view.rank);
    choose.addEventListener('click', () => chooseRank(rank));
    bar.setAttribute('role', 'img');
    bar.setAttribute('aria-label', longNameOf(rank) + ': ' + rank.parts.filter(part => part[1] > 0)
      .map(part => `${part[0]} ${share(part[1], data.seconds)}`).join(', '));
    rank.parts.forEach((part, at) => {
      if (part[1] <= 0) return;
      const piece = element('span');
      piece.style.width = 100 * part[1] / data.seconds + '%';
      piece.style.background = partColors[at];
      piece.title = `${part[0]}: ${time(part[1] * NS)}, ${share(part[1], data.seconds)}`;
      bar.append(piece);
    });
    box.append(choose, bar);
  }
  $('bars').replaceChildren(box);
  $('part-keys').replaceChildren(...used.map(name => keyOf(name, partColors[names.indexOf(name)])));
  const rows = [];
  for (const [name, seconds] of view.rank.parts) {
    if (seconds > 0) rows.push([name, time(seconds * NS), share(seconds, data.seconds)]);
    if (name === 'waits for collectives')
      for (const [axes, waited] of view.rank.over) rows.push([{ below: 'over ' + axes }, time(waited * NS), share(waited, data.seconds)]);
  }
  rows.push(['step', time(total), '']);
  $('parts').replaceChildren(table([{ title: `compute of ${longNameOf(view.rank)}` }, { title: 'takes', number: true },
    { title: 'of the step', number: true }], rows));
}

// Pictures of memory show by category what is kept from step to step, and above it what the step
// holds.
function categoriesOf(tier) {
  return Object.keys(categoryColors).filter(name => tier.kept[name] || tier.moments[name]);
}

function drawMemory() {
  figures.length = 0;
  const place = $('memory');
  place.replaceChildren();
  for (const tier of view.rank.memory) {
    const chart = element('div', null, 'chart'), keys = element('div', null, 'keys'), tip = element('div', null, 'tip'), holder = element('div');
    const said = element('div', null, 'soft');
    tip.hidden = true;
    const over = tier.limit > 0 && tier.allocated > tier.limit;
    said.textContent = `${bytes(tier.allocated)} allocated` + (tier.limit > 0
      ? `, ${over ? bytes(tier.allocated - tier.limit) + ' more than' : share(tier.allocated, tier.limit) + ' of'} the ${bytes(tier.limit)} that a rank may take`
      : '; how much a rank may take is unknown');
    if (over) said.className = 'bad';
    const categories = categoriesOf(tier);
    const at = (name, i) => (tier.kept[name] || 0) + (tier.moments[name] ? tier.moments[name][i] : 0);
    const sum = i => categories.reduce((all, name) => all + at(name, i), 0);
    keys.append(...categories.map(name => keyOf(name, categoryColors[name])));
    chart.append(element('h3', `${tier.tier} tier`), said, holder, keys, tip);
    place.append(chart);
    const draw = () => {
      const width = Math.max(260, holder.clientWidth || 640), height = 240, bottom = 26, edge = 70;
      const showsLimit = tier.limit > 0 && tier.allocated > 0.3 * tier.limit;
      const top = 1.06 * Math.max(tier.allocated, showsLimit ? tier.limit : 0, 1);
      const px = ns => edge + (width - edge - right) * (ns - view.from) / (view.to - view.from);
      const py = value => (height - bottom) * (1 - value / top) + 4;
      const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', tabindex: 0,
        'aria-label': `${tier.tier} tier over the step, ${said.textContent}; left and right go through the moments` });
      const clip = svg('clipPath', { id: 'clip-' + tier.tier });
      clip.append(svg('rect', { x: edge, y: 0, width: width - edge - right, height }));
      picture.append(clip);
      const size = Math.pow(1024, Math.floor(Math.log2(top) / 10));
      for (const tick of ticks(0, top / size, 6).map(tick => tick * size)) {
        picture.append(svg('line', { x1: edge, x2: width - right, y1: py(tick), y2: py(tick), stroke: 'var(--grid)' }));
        picture.append(svg('text', { x: edge - 6, y: py(tick) + 4, 'text-anchor': 'end' }, bytes(tick)));
      }
      drawTimes(picture, px, height - 8, width);
      const inside = svg('g', { 'clip-path': `url(#clip-${tier.tier})` });
      const below = tier.begin.map(() => 0);
      for (const name of categories) {
        let upper = '', lower = '';
        tier.begin.forEach((begin, i) => {
          const from = px(begin).toFixed(1), to = px(i + 1 < tier.begin.length ? tier.begin[i + 1] : total).toFixed(1);
          lower = `L${to} ${py(below[i]).toFixed(1)}L${from} ${py(below[i]).toFixed(1)}` + lower;
          below[i] += at(name, i);
          upper += `${i ? 'L' : 'M'}${from} ${py(below[i]).toFixed(1)}L${to} ${py(below[i]).toFixed(1)}`;
        });
        inside.append(svg('path', { d: upper + lower + 'Z', fill: categoryColors[name], class: 'category' }));
      }
      const line = (value, text, color, dash) => {
        picture.append(svg('line', { x1: edge, x2: width - right, y1: py(value), y2: py(value), stroke: color, 'stroke-width': 1.5, 'stroke-dasharray': dash }));
        picture.append(svg('text', { x: width - right - 4, y: py(value) - 4, 'text-anchor': 'end', style: `fill: ${color}` }, text));
      };
      picture.append(inside);
      const near = showsLimit && Math.abs(py(tier.limit) - py(tier.allocated)) < 16;
      if (!near) line(tier.allocated, 'allocated', 'var(--ink)', '3 3');
      if (showsLimit) line(tier.limit, 'a rank may take', 'var(--bad)', '7 4');
      const cursor = svg('line', { y1: 0, y2: height - bottom, stroke: 'var(--ink)', visibility: 'hidden' });
      picture.append(cursor);
      let now = -1;
      const show = (i, clientX) => {
        now = i;
        const begin = Math.max(tier.begin[i], view.from);
        cursor.setAttribute('visibility', 'visible');
        cursor.setAttribute('x1', px(begin));
        cursor.setAttribute('x2', px(begin));
        tip.textContent = [`from ${time(tier.begin[i])}: ${bytes(sum(i))}`, ...categories.filter(name => at(name, i) > 0).map(name => `${name}: ${bytes(at(name, i))}`)].join('\n');
        tip.hidden = false;
        const box = picture.getBoundingClientRect();
        placeTip(tip, picture, clientX === undefined ? box.left + px(begin) / width * box.width : clientX);
      };
      const hide = () => { tip.hidden = true; cursor.setAttribute('visibility', 'hidden'); };
      picture.addEventListener('pointermove', event => show(lastBefore(tier.begin, timeAt(picture, event, width, edge)), event.clientX));
      picture.addEventListener('pointerleave', hide);
      picture.addEventListener('blur', hide);
      picture.addEventListener('keydown', event => {
        if (zoomKey(event)) return;
        const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: tier.begin.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        show(Math.min(tier.begin.length - 1, Math.max(0, to)));
      });
      dragToZoom(picture, width, edge);
      holder.replaceChildren(picture);
    };
    figures.push(draw);
    const fold = element('details');
    let peak = 0;
    tier.begin.forEach((begin, i) => { if (sum(i) > sum(peak)) peak = i; });
    const rows = categories.map(name => [name, bytes(tier.kept[name] || 0), bytes(Math.max(0, ...(tier.moments[name] || [0]))), bytes(at(name, peak))]);
    rows.push(['all', bytes(categories.reduce((all, name) => all + (tier.kept[name] || 0), 0)), '', bytes(sum(peak))]);
    fold.append(element('summary', 'as a table'), table([{ title: 'category' }, { title: 'kept from step to step', number: true },
      { title: 'most beside it in the step', number: true }, { title: `together at the peak (${time(tier.begin[peak])})`, number: true }], rows));
    chart.append(fold);
  }
}

// drawTimes() writes the times below a picture.
function drawTimes(picture, px, y, width) {
  const marks = ticks(view.from, view.to, width < 500 ? 3 : 7);
  const unit = [1e9, 1e6, 1e3, 1].find(size => view.to >= size) || 1, name = { 1e9: 's', 1e6: 'ms', 1e3: 'µs', 1: 'ns' }[unit];
  for (const mark of marks)
    if (px(mark) > 20 && px(mark) < width - 20)
      picture.append(svg('text', { x: px(mark), y, 'text-anchor': 'middle' }, +(mark / unit).toPrecision(6) + ' ' + name));
}

function lastBefore(sorted, value, stride = 1) {
  let low = 0, high = sorted.length / stride;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    sorted[middle * stride] <= value ? low = middle : high = middle;
  }
  return low;
}

function timeAt(picture, event, width, edge) {
  const box = picture.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * width;
  return view.from + (view.to - view.from) * Math.min(1, Math.max(0, (at - edge) / (width - edge - right)));
}

function dragToZoom(picture, width, edge) {
  let start = null;
  picture.addEventListener('pointerdown', event => { start = event; });
  picture.addEventListener('pointerup', event => {
    if (start && Math.abs(event.clientX - start.clientX) > 8) {
      const ends = [timeAt(picture, start, width, edge), timeAt(picture, event, width, edge)].sort((a, b) => a - b);
      zoom(...ends);
    }
    start = null;
  });
  picture.addEventListener('dblclick', () => zoom(0, total));
}

// Each lane has a row. Its bars are seven numbers each: begin, span, busy, kind, first, last,
// count.
const SPAN = 7;
function blockText(row, at) {
  const b = row.lane.bars, i = at * SPAN, [begin, span, busy, kind, first, last, count] = b.slice(i, i + SPAN);
  const what = count === 1 ? data.labels[first] : `${count} instructions, most of them ${data.kinds[kind]}: ${data.labels[first]} … ${data.labels[last]}`;
  return `${row.title}: ${what}\nbegins ${time(begin)}, takes ${time(span)}` + (busy < span ? `, of which ${time(busy)} busy` : '') + `, ends ${time(begin + span)}`;
}

function makeLanes(place, rows, title, onRow) {
  const chart = element('div', null, 'chart'), holder = element('div'), tip = element('div', null, 'tip'), said = element('div', null, 'said soft');
  const keys = element('div', null, 'keys');
  const kinds = new Set();
  for (const row of rows) for (let i = 3; i < row.lane.bars.length; i += SPAN) kinds.add(row.lane.bars[i]);
  keys.append(...data.kinds.map((name, at) => [name, at]).filter(([, at]) => kinds.has(at)).map(([name, at]) => keyOf(name, kindColors[at])));
  tip.hidden = true;
  said.setAttribute('role', 'status');
  said.textContent = 'no block chosen';
  chart.append(holder, keys, said, tip);
  place.replaceChildren(chart);
  const at = { row: 0, block: -1 };
  return () => {
    const width = Math.max(260, holder.clientWidth || 640), step = 36, height = rows.length * step + 22;
    const px = ns => left + (width - left - right) * (ns - view.from) / (view.to - view.from);
    const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'application', tabindex: 0, 'aria-label': title, 'aria-describedby': 'how' });
    const clip = svg('clipPath', { id: 'clip-' + place.id });
    clip.append(svg('rect', { x: left, y: 0, width: width - left - right, height }));
    const inside = svg('g', { 'clip-path': `url(#clip-${place.id})` });
    picture.append(clip, inside);
    rows.forEach((row, r) => {
      const y = r * step + 16, b = row.lane.bars, paths = {};
      inside.append(svg('rect', { x: left, y, width: width - left - right, height: 17, fill: 'var(--grid)' }));
      picture.append(svg('text', { x: left, y: y - 4, class: 'lane' }, `${row.title}, ${share(row.lane.busy, total)} busy`));
      for (let i = 0; i < b.length; i += SPAN) {
        if (b[i] > view.to || b[i] + b[i + 1] < view.from) continue;
        const x = px(b[i]), wide = Math.max(0.6, px(b[i] + b[i + 1]) - x - (px(b[i] + b[i + 1]) - x > 4 ? 1 : 0));
        // A block that is idle for more than half of its span is drawn half as strong.
        const strength = b[i + 2] * 2 < b[i + 1] ? 0.5 : 1;
        const key = b[i + 3] + ' ' + strength;
        paths[key] = (paths[key] || '') + `M${x.toFixed(1)} ${y}h${wide.toFixed(1)}v17h${(-wide).toFixed(1)}z`;
      }
      for (const key in paths) {
        const [kind, strength] = key.split(' ');
        inside.append(svg('path', { d: paths[key], fill: kindColors[kind], 'fill-opacity': strength, class: 'bars' }));
      }
    });
    drawTimes(picture, px, height - 6, width);
    const mark = svg('rect', { height: 21, fill: 'none', stroke: 'var(--ink)', 'stroke-width': 2, rx: 2, visibility: 'hidden' });
    picture.append(mark);
    const show = (r, i, clientX) => {
      at.row = r;
      at.block = i;
      const b = rows[r].lane.bars, x = Math.max(left, px(b[i * SPAN])), end = Math.min(width - right, px(b[i * SPAN] + b[i * SPAN + 1]));
      mark.setAttribute('visibility', 'visible');
      mark.setAttribute('x', x - 2);
      mark.setAttribute('y', r * step + 14);
      mark.setAttribute('width', Math.max(4, end - x + 4));
      said.textContent = blockText(rows[r], i);
      if (clientX === undefined) { tip.hidden = true; return; }
      tip.textContent = said.textContent;
      tip.hidden = false;
      placeTip(tip, picture, clientX);
      tip.style.top = (r + 1) * step + 14 + 'px';
    };
    picture.addEventListener('pointermove', event => {
      const box = picture.getBoundingClientRect();
      const r = Math.floor((event.clientY - box.top) / box.height * height / step);
      if (r < 0 || r >= rows.length || !rows[r].lane.bars.length) { tip.hidden = true; return; }
      const now = timeAt(picture, event, width, left), b = rows[r].lane.bars, slack = 3 * (view.to - view.from) / width;
      let i = lastBefore(b, now, SPAN);
      if (now > b[i * SPAN] + b[i * SPAN + 1] + slack && (i + 1) * SPAN < b.length && b[(i + 1) * SPAN] - now < slack) ++i;
      if (now < b[i * SPAN] - slack || now > b[i * SPAN] + b[i * SPAN + 1] + slack) { tip.hidden = true; mark.setAttribute('visibility', 'hidden'); return; }
      show(r, i, event.clientX);
    });
    picture.addEventListener('pointerleave', () => { tip.hidden = true; });
    picture.addEventListener('click', event => {
      const box = picture.getBoundingClientRect(), r = Math.floor((event.clientY - box.top) / box.height * height / step);
      if (onRow && rows[r]) onRow(r);
    });
    picture.addEventListener('keydown', event => {
      if (zoomKey(event)) return;
      if (onRow && event.key === 'Enter') { onRow(at.row); return; }
      const b = rows[at.row].lane.bars, last = b.length / SPAN - 1;
      let r = at.row, i = at.block;
      if (event.key === 'ArrowRight') i = Math.min(last, i + 1);
      else if (event.key === 'ArrowLeft') i = Math.max(0, i - 1);
      else if (event.key === 'Home') i = 0;
      else if (event.key === 'End') i = last;
      else if (event.key === 'ArrowUp' || event.key === 'ArrowDown') {
        r = Math.min(rows.length - 1, Math.max(0, r + (event.key === 'ArrowDown' ? 1 : -1)));
        i = lastBefore(rows[r].lane.bars, i < 0 ? view.from : b[i * SPAN], SPAN);
      } else return;
      event.preventDefault();
      bringIntoView(rows[r].lane.bars[i * SPAN], rows[r].lane.bars[i * SPAN + 1]);
      // bringIntoView() draws the picture again; the new picture keeps the focus.
      show(r, i);
      refocus(place, r, i);
    });
    dragToZoom(picture, width, left);
    picture.show = show;
    holder.replaceChildren(picture);
  };
}

function refocus(place, r, i) {
  const picture = place.querySelector('svg');
  if (document.activeElement !== picture) picture.focus({ preventScroll: true });
  picture.show(r, i);
}

function bringIntoView(begin, span) {
  if (begin >= view.from && begin + span <= view.to) return;
  const wide = Math.max(view.to - view.from, Math.min(total, span * 1.2)), from = Math.min(Math.max(0, begin - wide / 3), total - wide);
  zoom(from, from + wide);
}

function zoom(from, to) {
  const least = total / 1e5;
  if (to - from < least) to = from + least;
  view.from = Math.max(0, from);
  view.to = Math.min(total, to);
  if (view.to - view.from < least) view.from = Math.max(0, view.to - least);
  drawTimesAnew();
}

function zoomBy(factor) {
  const middle = (view.from + view.to) / 2, half = (view.to - view.from) / 2 * factor;
  zoom(middle - half, middle + half);
}

function zoomKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const act = { '+': () => zoomBy(0.5), '=': () => zoomBy(0.5), '-': () => zoomBy(2), '0': () => zoom(0, total) }[event.key];
  if (!act) return false;
  event.preventDefault();
  const holder = event.currentTarget.parentNode;
  act();
  holder.querySelector('svg').focus({ preventScroll: true });
  return true;
}

let drawOverview = null, drawLanes = null;
function drawTimesAnew() {
  $('reset').disabled = view.from === 0 && view.to === total;
  for (const draw of figures) draw();
  if (drawOverview) drawOverview();
  drawLanes();
}

function chooseRank(rank) {
  view.rank = rank;
  $('rank').value = data.ranks.indexOf(rank);
  drawRank();
}

const kMaxRows = 1000;
function listInstructions() {
  const lane = view.rank.lanes[$('lane').value], b = lane.bars, rows = [];
  for (let i = 0; i < Math.min(b.length, kMaxRows * SPAN); i += SPAN)
    rows.push([time(b[i]), time(b[i + 1]), b[i + 6] === 1 ? data.labels[b[i + 4]] : `${b[i + 6]} instructions: ${data.labels[b[i + 4]]} … ${data.labels[b[i + 5]]}`]);
  $('instructions').replaceChildren(table([{ title: 'begins', number: true }, { title: 'takes', number: true }, { title: 'instruction' }], rows));
  if (b.length > kMaxRows * SPAN)
    $('instructions')
        .append(
            element('div', `${b.length / SPAN - kMaxRows} more bars are left out here`, 'soft'));
}

function drawRank() {
  const rank = view.rank;
  drawParts();
  drawMemory();
  $('whose').textContent = longNameOf(rank);
  drawLanes = makeLanes($('lanes'), rank.lanes.map(lane => ({ title: lane.name, lane })), `lanes of ${longNameOf(rank)}`);
  $('lane').replaceChildren(...rank.lanes.map((lane, at) => { const option = element('option', lane.name); option.value = at; return option; }));
  if ($('listed').open) listInstructions();
  drawTimesAnew();
}

const memoryText = memory => bytes(memory.device) + (memory.host > 0 ? ` and ${bytes(memory.host)} of main memory` : '');

function makeSearch() {
  if (!data.search) return;
  $('found').hidden = false;
  for (const line of data.search.lines) if (line) $('search').append(element('div', line));
  $('search').append(table([{ title: '' }, { title: 'layout' }, { title: 'step', number: true }, { title: 'memory of a rank' }],
    data.search.layouts.map((one, at) => [String(at + 1), one.layout, time(one.seconds * NS), memoryText(one.memory)]), at => at === 0 ? 'chosen' : ''));
  if (data.search.why_not.length)
    $('search').append(table([{ title: 'choice' }, { title: 'at least', number: true }, { title: 'needs at least', number: true }, { title: 'why not' }],
      data.search.why_not.map(one => [one.choice, one.at_least ? time(one.at_least.seconds * NS) : '', one.at_least ? memoryText(one.at_least.memory) : '', one.reason]),
      at => data.search.why_not[at].reason === 'chosen' ? 'chosen' : ''));
}

function makePage() {
  $('made').textContent = data.made;
  for (const line of data.facts) $('facts').append(element('div', line));
  for (const line of data.warnings) $('facts').append(element('div', line, 'bad'));
  data.ranks.forEach((rank, at) => { const option = element('option', longNameOf(rank)); option.value = at; $('rank').append(option); });
  $('choose').hidden = data.ranks.length === 1;
  $('rank').addEventListener('change', event => chooseRank(data.ranks[event.target.value]));
  $('in').addEventListener('click', () => zoomBy(0.5));
  $('out').addEventListener('click', () => zoomBy(2));
  $('reset').addEventListener('click', () => zoom(0, total));
  $('lane').addEventListener('change', listInstructions);
  $('listed').addEventListener('toggle', () => { if ($('listed').open) listInstructions(); });
  $('scale').textContent = `Neighbors shorter than ${time(data.pixel)} are drawn as one block.`;
  makeSearch();
  if (data.ranks.length > 1) {
    $('stages').hidden = false;
    if (data.left_out) $('stages').append(element('div', `${data.left_out} more stages are left out here`, 'soft'));
    drawOverview = makeLanes($('overview'), data.ranks.map(rank => ({ title: longNameOf(rank), lane: rank.lanes.find(lane => lane.compute) || { busy: 0, bars: [] } })),
      'compute of each stage', r => chooseRank(data.ranks[r]));
  }
  if (data.traffic.length) {
    $('traffic').hidden = false;
    $('exchanged').append(table([{ title: 'collective' }, { title: 'over' }, { title: 'ranks', number: true }, { title: 'calls', number: true }, { title: 'bytes', number: true }],
      data.traffic.map(row => [row.kind, row.axes, String(row.ranks), String(row.calls), bytes(row.bytes)])));
  }
  drawRank();
}

makePage();
addEventListener('resize', drawTimesAnew);
