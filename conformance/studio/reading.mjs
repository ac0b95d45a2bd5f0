// Can it be read and reached? Contrast of text in the colours that the browser computes, and where Tab leads.

/** The least ratio of WCAG AA for text of ordinary size. What is disabled is exempt there, too. */
const LEAST = 4.5;

/** All text of the page whose contrast with what is behind it is too low. */
export async function pale(page) {
  return page.evaluate(least => {
    const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    /** A colour of CSS as red, green, blue and opacity. */
    const read = color => {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = color;
      pen.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    };
    const over = (top, below) => top.slice(0, 3).map((value, index) => value * top[3] + below[index] * (1 - top[3]));
    const behind = element => {
      const layers = [];
      for (let at = element; at; at = at.parentElement) {
        const color = read(getComputedStyle(at).backgroundColor);
        if (color[3] > 0) layers.push(color);
        if (color[3] === 1) break;
      }
      return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
    };
    const light = color => color.map(value => value / 255).map(value => value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4)
      .reduce((sum, value, index) => sum + value * [.2126, .7152, .0722][index], 0);
    const found = new Map();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.textContent.trim() || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || element.closest("option, :disabled, script, .visually-hidden, .skip")) continue;
      const style = getComputedStyle(element), below = behind(element);
      const color = over(read(element instanceof SVGElement ? style.fill : style.color), below);
      const [dark, bright] = [light(color), light(below)].sort((a, b) => a - b);
      const ratio = (bright + .05) / (dark + .05);
      if (ratio < least) found.set(`${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""}`, `${ratio.toFixed(2)} of "${node.textContent.trim().slice(0, 30)}"`);
    }
    return [...found].map(([where, what]) => `${where}: ${what}`);
  }, LEAST);
}

/** Controls that can be seen and that Tab does not reach, or that do not show that they have the focus. */
export async function unreachable(page) {
  const names = () => page.evaluate(() => {
    const all = [...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex]")];
    const is = element => element.checkVisibility({ visibilityProperty: true }) && !element.disabled && element.tabIndex >= 0;
    return all.filter(is).map((element, index) => { element.dataset.stop = String(index); return index; });
  });
  const left = new Set(await names()), total = left.size, unseen = [];
  await page.evaluate(() => { document.activeElement?.blur(); window.scrollTo(0, 0); });
  for (let press = 0; press < total + 5 && left.size; press += 1) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const element = document.activeElement, style = element && getComputedStyle(element);
      return { stop: Number(element?.dataset?.stop ?? -1), isShown: style ? style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 : false, what: element?.outerHTML.slice(0, 100) };
    });
    if (left.delete(at.stop) && !at.isShown) unseen.push(`the focus does not show: ${at.what}`);
  }
  const missed = await page.evaluate(stops => stops.map(stop => document.querySelector(`[data-stop="${stop}"]`)?.outerHTML.slice(0, 120)), [...left]);
  return [...unseen, ...missed.map(what => `Tab does not lead to ${what}`)];
}
