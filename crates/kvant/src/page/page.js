for(const b of document.querySelectorAll('th button'))b.addEventListener('click',()=>{
const h=b.parentNode,t=h.closest('table'),i=[...h.parentNode.children].indexOf(h),down=h.getAttribute('aria-sort')==='ascending';
for(const o of h.parentNode.children)o.removeAttribute('aria-sort');h.setAttribute('aria-sort',down?'descending':'ascending');
const v=r=>r.children[i].textContent,n=s=>parseFloat(s.replace(/[^0-9.eE+-]/g,'')),c=(x,y)=>{const a=n(v(x)),d=n(v(y));return h.className==='n'&&!isNaN(a)&&!isNaN(d)?a-d:v(x).localeCompare(v(y),undefined,{numeric:true})};
const body=t.tBodies[0];[...body.rows].sort((x,y)=>down?c(y,x):c(x,y)).forEach(r=>body.append(r))});
