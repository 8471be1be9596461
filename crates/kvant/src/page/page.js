const units = {B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12};
const number = text => parseFloat(text) * (units[text.split(' ')[1]] || 1);
const compare = (x, y) => {
  const [a, b] = [number(x), number(y)];
  if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b) || x.localeCompare(y, undefined, {numeric: true});
  return a - b;
};
for (const button of document.querySelectorAll('th button')) button.addEventListener('click', () => {
  const head = button.parentNode, titles = [...head.parentNode.children], column = titles.indexOf(head);
  const down = head.getAttribute('aria-sort') === 'ascending', body = head.closest('table').tBodies[0];
  titles.forEach(title => title.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const text = row => row.children[column].textContent;
  const order = (x, y) => head.className === 'n' ? compare(text(x), text(y)) : text(x).localeCompare(text(y), undefined, {numeric: true});
  [...body.rows].sort((x, y) => down ? order(y, x) : order(x, y)).forEach(row => body.append(row));
});
addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(details => details.open = true));
