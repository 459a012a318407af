// Sorting the cards of the tensors; without scripts they stay in the order of their SQNR.
const choice = document.getElementById("sort");
if (choice) {
  const list = document.getElementById("cards");
  const compare = {
    sqnr: (a, b) => Number(a.sqnr.replace("inf", "Infinity")) - Number(b.sqnr.replace("inf", "Infinity")),
    index: (a, b) => a.index - b.index,
    clipped: (a, b) => b.clipped - a.clipped,
    name: (a, b) => (a.name < b.name ? -1 : 1),
  };
  choice.closest("[hidden]").hidden = false;
  choice.addEventListener("change", () => {
    const cards = [...list.children].sort((a, b) => compare[choice.value](a.dataset, b.dataset));
    list.append(...cards);
  });
}
