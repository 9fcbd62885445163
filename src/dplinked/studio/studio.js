// Small things that the pages need and Shiny does not do. Nothing is loaded from, or sent to, anywhere else.

/* shell: the top of a page is shown when its step is turned to, its heading gets the focus, and the menu of a phone closes */
document.addEventListener('shown.bs.tab', event => {
  const menu = document.querySelector('.navbar-collapse.show'), button = document.querySelector('.navbar-toggler');
  if (menu && event.target.closest('.navbar-collapse')) {  // on a phone it would cover the page
    menu.classList.remove('show');
    button.classList.add('collapsed');
    button.setAttribute('aria-expanded', 'false');
  }
  window.scrollTo(0, 0);
  const heading = document.querySelector(`.tab-pane.active[data-value="${event.target.dataset.value}"] h1`);
  if (heading && document.activeElement && document.activeElement.closest('.ways')) {
    heading.tabIndex = -1;
    heading.focus();
  }
});

/* shell: Shiny sends an update for each field that appears, all but the first one empty, and the server looks through the whole page for each: these stay here */
$(document).on('shiny:connected', () => {
  const app = Shiny.shinyapp, send = app.sendInput;
  app.sendInput = values => { if (Object.keys(values).length) send.call(app, values); };
});

/* shell: when the studio does not answer any more, the page says so and what to do, and comes back by itself where it can */
const openedAt = Date.now();
$(document).on('shiny:disconnected', () => setTimeout(sayGone, 400)); // not while the page is being left
window.addEventListener('pagehide', () => { window.leaving = true; });

function sayGone() {
  if (window.leaving || document.querySelector('.gone')) return;
  const box = document.createElement('div');
  box.className = 'gone elsewhere';
  box.setAttribute('role', 'alertdialog');
  box.setAttribute('aria-labelledby', 'gone_title');
  box.innerHTML = `<h1 id="gone_title" tabindex="-1">The studio has stopped</h1>
    <p>Nothing is lost: what you chose and typed is kept in its folder. A release that had begun is in the ledger, if there is one, with its charge.</p>
    <p class="gone_next">Start it again in a terminal, in the same folder: <code>dplinked studio</code>. It goes on in the window that opens then, at the step where you are, and this one can be closed.</p>`;
  document.body.append(box);
  document.getElementById('gone_title').focus();
  waitForStudio(box);
}

async function waitForStudio(box) {
  let answer;
  try { answer = await fetch(location.href, { cache: 'no-store' }); } catch { answer = null; }
  if (answer && answer.ok) {
    if (Date.now() - openedAt > 5000) return location.reload();
    box.querySelector('h1').textContent = 'The connection was lost';
    box.querySelector('.gone_next').innerHTML = '<button class="btn btn-primary" onclick="location.reload()">Go on</button>';
    return;
  }
  if (answer) { // a studio is there again, with another address
    box.querySelector('h1').textContent = 'The studio was started anew';
    box.querySelector('.gone_next').textContent =
      'It goes on in the window that it opened, or at the address that it printed in the terminal. This window is of the studio before, and can be closed.';
    return;
  }
  setTimeout(() => waitForStudio(box), 2000);
}

/* link */

/* review: keys and buttons answer the link that is shown; an answer says which one it was meant for */
const answered = { y: 'y', n: 'n', u: 'u', z: 'z', arrowleft: 'left', arrowright: 'right' };
const answerLink = key => {
  const shown = document.querySelector('.tab-pane.active[data-value="review"] [data-place]');
  if (shown) Shiny.setInputValue('review_key', { key, place: Number(shown.dataset.place) }, { priority: 'event' });
  return Boolean(shown);
};
document.addEventListener('keydown', event => {
  const key = answered[event.key.toLowerCase()], on = document.getElementById('review_keys');
  if (!key || !on || !on.checked || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest('input:not([type="checkbox"]), select, textarea, .modal') || document.querySelector('.modal.show')) return;
  if (key.length > 1 && event.target.closest('[role="tab"]')) return;
  if (answerLink(key)) event.preventDefault();
});
document.addEventListener('click', event => {
  const button = event.target.closest('[data-answer]');
  if (button) answerLink(button.dataset.answer);
});

/* study: faults are put beside their fields, once these were left or Next was pressed; what is wrong, and not merely missing, as soon as nobody is typing there */
const faults = { found: [], draft: null, asked: false, left: new Set() };

function showFaults() {
  for (const field of document.querySelectorAll('[data-place]')) {
    const place = field.dataset.place, found = faults.found.find(one => one.place === place);
    const busy = typesIn(field, document.activeElement);
    const known = faults.asked || faults.left.has(place) || (found && !found.missing && !busy);
    showFault(field, found && known ? found.text : '');
  }
}

function typesIn(field, node) {
  return node && field.contains(node) && !node.closest('.help');
}

function showFault(field, text) {
  let told = field.querySelector(':scope > .fault');
  if (!told && !text) return;
  if (!told) {
    told = document.createElement('p');
    told.className = 'fault';
    told.id = `fault_${field.dataset.place}`.replace(/[^\w]/g, '-') + Math.random().toString(36).slice(2, 8);
    field.append(told);
  }
  if (told.textContent !== text) told.textContent = text;
  told.hidden = !text;
  for (const input of field.querySelectorAll('input:not([type=radio]), select, textarea')) {
    if (text) input.setAttribute('aria-describedby', told.id); else input.removeAttribute('aria-describedby');
    if (text) input.setAttribute('aria-invalid', 'true'); else input.removeAttribute('aria-invalid');
  }
}

document.addEventListener('focusout', event => {
  const field = event.target.closest && event.target.closest('[data-place]');
  if (!field || typesIn(field, event.relatedTarget) || event.target.closest('.help')) return;
  faults.left.add(field.dataset.place);
  showFaults();
});

document.addEventListener('click', event => {
  if (!event.target.closest('#next_study') || !faults.found.length) return;
  const first = !faults.asked;
  faults.asked = true;
  showFaults();
  if (!first) return;  // whoever presses it again goes on with what there is
  event.stopImmediatePropagation();
  event.preventDefault();
  const shown = [...document.querySelectorAll('[data-place] > .fault:not([hidden])')].find(one => one.offsetParent);
  const field = shown && [...shown.parentNode.querySelectorAll('input, select, textarea')].find(one => one.offsetParent);
  if (field) field.focus();
}, true);

document.addEventListener('DOMContentLoaded', () => {
  Shiny.addCustomMessageHandler('faults', told => {
    if (told.draft !== faults.draft) Object.assign(faults, { draft: told.draft, asked: false, left: new Set() });
    faults.found = told.faults;
    showFaults();
  });
  $(document).on('shiny:idle', showFaults);
});

/* study: levels as chips; the field of lines behind them is what the studio reads */
function levelsOf(box) {
  return box.querySelector('textarea').value.split('\n').map(line => line.trim()).filter(Boolean);
}

function setLevels(box, levels, told) {
  const field = box.querySelector('textarea');
  field.value = [...new Set(levels)].join('\n');
  field.dispatchEvent(new Event('change', { bubbles: true }));
  drawLevels(box);
  box.querySelector('.told').textContent = told;
}

function drawLevels(box) {
  const name = (box.closest('.column').querySelector('h3') || {}).textContent || '';
  const chip = (level, k) => {
    const item = document.createElement('li'), first = document.createElement('button'), away = document.createElement('button');
    first.type = away.type = 'button';
    first.className = 'level';
    first.textContent = k ? level : `${level} (reference)`;
    first.setAttribute('aria-label', k ? `${name}: make ${level} the reference level` : `${name}: ${level} is the reference level`);
    if (k) first.title = 'Make it the reference level';
    else first.setAttribute('aria-disabled', 'true');
    away.className = 'away';
    away.textContent = '×';
    away.setAttribute('aria-label', `${name}: remove ${level}`);
    first.addEventListener('click', () => {
      if (!k) return;
      setLevels(box, [level, ...levelsOf(box)], `${level} is the reference level`);
      box.querySelector('.level').focus();
    });
    away.addEventListener('click', () => {
      setLevels(box, levelsOf(box).filter(one => one !== level), `${level} removed`);
      const rest = box.querySelectorAll('.away');
      (rest[Math.min(k, rest.length - 1)] || box.querySelector('.entry')).focus();
    });
    item.append(first, away);
    return item;
  };
  box.querySelector('.chosen').replaceChildren(...levelsOf(box).map(chip));
}

function addLevels(box, text) {
  const quoted = /"([^"]*)"|'([^']*)'|([^,;\t\n\r]+)/g;
  const added = [...text.matchAll(quoted)].map(one => (one[1] ?? one[2] ?? one[3]).trim()).filter(Boolean);
  if (added.length) setLevels(box, [...levelsOf(box), ...added], `${added.join(', ')} added`);
}

document.addEventListener('keydown', event => {
  const entry = event.target.closest && event.target.closest('.chips .entry');
  if (!entry) return;
  const box = entry.closest('.chips');
  if (event.key === 'Enter') {
    event.preventDefault();
    addLevels(box, entry.value);
    entry.value = '';
  } else if (event.key === 'Backspace' && !entry.value) {
    const levels = levelsOf(box);
    if (levels.length) setLevels(box, levels.slice(0, -1), `${levels.at(-1)} removed`);
  }
});

document.addEventListener('paste', event => {
  const entry = event.target.closest && event.target.closest('.chips .entry');
  const text = entry && event.clipboardData.getData('text');
  if (!text || !/[,;\t\n]/.test(text)) return;
  event.preventDefault();
  addLevels(entry.closest('.chips'), entry.value + text);
  entry.value = '';
});

document.addEventListener('focusout', event => {
  if (!event.target.matches || !event.target.matches('.chips .entry') || !event.target.value) return;
  addLevels(event.target.closest('.chips'), event.target.value);
  event.target.value = '';
});

document.addEventListener('DOMContentLoaded', () => {
  $(document).on('shiny:bound', event => {
    const box = event.target.closest && event.target.closest('.chips');
    if (box) drawLevels(box);
  });
});

/* plan */

/* release: the list of releases tells what a person chooses there, and nothing else */
document.addEventListener('change', event => {
  if (event.target.id === 'which_release') Shiny.setInputValue('which_release', event.target.value, { priority: 'event' });
});

/* budget */
