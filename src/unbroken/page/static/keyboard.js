// Arrow keys between the cells of the dataflow: to the nearest one in that direction, as they are seen.

const DIRECTIONS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

export function moveFocus(host, event) {
  const cell = event.target.closest?.(".cell");
  if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
  const cells = [...host.querySelectorAll(".cell")];
  let target = null;
  if (event.key === "Home") target = cells[0];
  else if (event.key === "End") target = cells[cells.length - 1];
  else if (DIRECTIONS[event.key]) target = nearest(cell, cells, DIRECTIONS[event.key]);
  else return;
  event.preventDefault();
  if (!target || target === cell) return;
  cell.setAttribute("tabindex", "-1");
  target.setAttribute("tabindex", "0");
  target.focus();
}

/** The cell in a direction that is nearest, with what lies aside counted more. */
function nearest(cell, cells, [dx, dy]) {
  const from = middle(cell);
  let best = null;
  let least = Infinity;
  for (const other of cells) {
    if (other === cell) continue;
    const to = middle(other);
    const along = (to.x - from.x) * dx + (to.y - from.y) * dy;
    const aside = Math.abs((to.x - from.x) * dy) + Math.abs((to.y - from.y) * dx);
    if (along < 4) continue;
    const distance = along + 2.5 * aside;
    if (distance < least) {
      least = distance;
      best = other;
    }
  }
  return best;
}

function middle(node) {
  const box = node.getBoundingClientRect();
  return { x: box.left + box.width / 2, y: box.top + box.height / 2 };
}
