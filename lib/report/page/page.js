'use strict';
// Data enter the page by textContent or as numbers, never as markup.
const data = JSON.parse(document.getElementById('data').textContent);
const colors = ['#0969da', '#bc4c00', '#1a7f37', '#8250df', '#bf3989', '#9a6700', '#0a7d91', '#57606a'];
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

function ticks(low, high, count) {
  const raw = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw) || raw;
  const all = [];
  for (let at = Math.ceil(low / step); at * step <= high && all.length < 40; ++at) all.push(at * step);
  return all;
}

// Puts a tooltip next to a position in a picture, on the side with more room.
function placeTip(tip, picture, clientX) {
  const box = picture.getBoundingClientRect(), at = clientX - box.left;
  tip.style.top = '46px';
  tip.style.left = at < box.width / 2 ? at + 22 + 'px' : '';
  tip.style.right = at < box.width / 2 ? '' : box.width - at + 22 + 'px';
}

// The parts of a legend: a mark in its color before each text.
function keyOf(text, color) {
  const key = element('span', text), mark = element('i');
  mark.style.borderTopColor = color;
  key.prepend(mark);
  return key;
}

// A table with its own scroll; columns are {title, number, className}. A cell {below} is a part of the row above it.
function table(columns, rows, classOf) {
  const made = element('table'), head = element('tr'), scroll = element('div', null, 'scroll');
  for (const column of columns) {
    const cell = element('th', column.title, column.number ? 'number' : '');
    cell.scope = 'col';
    head.append(cell);
  }
  made.append(head);
  rows.forEach((row, at) => {
    const line = element('tr', null, classOf ? classOf(at) : '');
    row.forEach((cell, i) => line.append(cell?.below ? element('td', cell.below, 'sub') : element('td', cell, columns[i].number ? 'number' : columns[i].className)));
    made.append(line);
  });
  scroll.tabIndex = 0;
  scroll.append(made);
  return scroll;
}

$('theme').addEventListener('click', () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
});
