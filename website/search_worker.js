// The search of the site: ranks the sections of search.json for a query. Takes the place of Zensical's worker, which wants
// every word of a query in one section, and knows no weights. The messages are Zensical's.
"use strict";

const SETUP = 0, READY = 1, QUERY = 2, RESULT = 3, FAILED = 4;
const FIELDS = { title: 5, path: 1.5, text: 1 }; // what the page shows
const ADDRESS = 2, RELATED_WEIGHT = 0.6;
const PAGE_SIZE = 10;
const WORD = /<[^>]*>|&\w+;|[\p{L}\p{N}]+/gu; // tags and entities are matched to be left out

const STOP_WORDS = new Set(
  ("a about after all also am an and any are as at be been but by can could did do does doing during for from get getting give had has have " +
   "he help her here his how i if in into is it its just like make making may me might must my need of on or our please set should so " +
   "some still than that the their them then there these they this to up use using versus very vs want was we were what when where which while " +
   "who why will with would you your not no isn aren don doesn won t s").split(" ")
);

// Words of users, and other words of the pages for the same thing.
const SYNONYMS = {
  action: ["move"], agent: ["policy"], agents: ["multi"], atari: ["image"], bc: ["imitation"], best: ["highest"], break: ["error"], cluster: ["machine"],
  cnn: ["convolution"], confidence: ["seed", "bootstrap"], continue: ["resume", "restore"], crash: ["fail", "error", "restart"], custom: ["own"], cuda: ["gpu"],
  dataset: ["data", "recorded"], deploy: ["serve", "export"], deterministic: ["greedy", "reproducible", "explore"], disk: ["memory"],
  fast: ["slow", "speed"], freeze: ["train"], gif: ["video"], gpu: ["accelerator", "device", "cuda"], hyperparameter: ["setting", "sweep"],
  imitation: ["bc", "recorded"], inference: ["serve", "action"], invalid: ["mask"], load: ["resume", "checkpoint", "restore"],
  loss: ["learner"], lr: ["rate"], lstm: ["memory", "recurrent"], many: ["several"], model: ["policy", "network", "module", "weight"],
  monitor: ["display", "progress"], multi: ["several"], multiagent: ["agents", "several"], multiple: ["several"], nan: ["finite"],
  network: ["module", "model"], neural: ["network"], normalize: ["scale", "filter"], offline: ["recorded"], onnx: ["export"],
  oom: ["memory"], optuna: ["tune", "sweep"], parallel: ["vectorized", "several", "actor"], pause: ["stop"], pixel: ["image"],
  plot: ["curve", "figure"], policy: ["agent", "model"], precision: ["bfloat16"], pretrained: ["weight", "checkpoint"], production: ["serve"], pytorch: ["torch"], ram: ["memory"],
  recurrent: ["lstm", "memory"], reload: ["resume"], render: ["video", "watch"], restore: ["resume", "checkpoint"], rnn: ["lstm", "memory"],
  save: ["checkpoint"], scale: ["normalize"], see: ["watch", "video"], schedule: ["decay"], speed: ["fast", "slow"], stuck: ["learn"], subprocess: ["process", "parallel"], tensorboard: ["tracker"],
  tune: ["sweep", "hyperparameter"], unstable: ["learn"], vector: ["vectorized"], visualize: ["video", "curve"], wandb: ["tracker"], watch: ["video"],
  worker: ["runner", "actor"], wrapper: ["connector", "environment"],
};

/** A word without its ending: "saving", "saved" and "saves" are one word. */
function stem(word) {
  let w = word.normalize("NFKD").toLowerCase();
  if (w.length > 4 && w.endsWith("ies")) w = w.slice(0, -3) + "y";
  else if (/(ss|sh|ch|x|z)es$/.test(w)) w = w.slice(0, -2);
  else if (w.length > 3 && /[^siu]s$/.test(w)) w = w.slice(0, -1);
  const before = w;
  if (w.length > 5 && w.endsWith("ing")) w = w.slice(0, -3);
  else if (w.length > 4 && w.endsWith("ed")) w = w.slice(0, -2);
  if (w.length > 7 && w.endsWith("ation")) w = w.slice(0, -5); // exploration, explore
  else if (w.length > 6 && w.endsWith("ate")) w = w.slice(0, -3); // evaluation, evaluate
  else if (w.length > 6 && w.endsWith("at") && w !== before) w = w.slice(0, -2); // truncated, truncation
  if (w !== before && /([bdgmnprt])\1$/.test(w)) w = w.slice(0, -1); // running
  return w.length > 3 && w.endsWith("e") ? w.slice(0, -1) : w;
}

const RELATED = new Map(Object.entries(SYNONYMS).map(([word, others]) => [stem(word), others.map(stem)]));

/** The words of a text with their places, tags left out. */
function* words(text) {
  for (const match of text.matchAll(WORD)) {
    if (match[0][0] !== "<" && match[0][0] !== "&") yield { stem: stem(match[0]), start: match.index, end: match.index + match[0].length };
  }
}

class Index {
  constructor(items) {
    this.items = items;
    this.written = new Map(); // word as it is written -> stem, for words with a slip
    this.postings = new Map(); // stem -> Map(item -> sum over fields of weight * saturated count)
    this.titles = items.map((item) => [...words(item.title)].map((word) => word.stem));
    const lengths = items.map((item) => item.text.length + 200);
    const mean = lengths.reduce((sum, length) => sum + length, 0) / Math.max(1, items.length);
    items.forEach((item, id) => {
      const address = item.location.replace(/#.*/, "");
      for (const [field, weight] of [...Object.entries(FIELDS), ["location", ADDRESS]]) {
        const content = field === "path" ? (item.path || []).join(" ") : field === "location" ? address : item[field];
        const counts = new Map();
        for (const word of words(content)) {
          counts.set(word.stem, (counts.get(word.stem) || 0) + 1);
          this.written.set(content.slice(word.start, word.end).toLowerCase(), word.stem);
        }
        const long = field === "text" ? 0.25 + (0.75 * lengths[id]) / mean : 1;
        for (const [word, count] of counts) {
          if (!this.postings.has(word)) this.postings.set(word, new Map());
          const found = this.postings.get(word);
          found.set(id, (found.get(id) || 0) + (weight * count) / (count + 1.2 * long));
        }
      }
    });
    this.vocabulary = [...this.postings.keys()].sort();
  }

  /** How much rarer a word is than others. */
  rarity(word) {
    const count = this.postings.get(word).size;
    return Math.log(1 + (this.items.length - count + 0.5) / (count + 0.5));
  }

  /** Words of the pages that a word of a query stands for, each with a weight. */
  variants(word, asWritten, isLast) {
    const found = new Map();
    const add = (other, weight) => {
      if (this.postings.has(other)) found.set(other, Math.max(weight, found.get(other) || 0));
    };
    add(word, 1);
    for (const other of RELATED.get(word) || []) add(other, RELATED_WEIGHT);
    if (isLast || !this.postings.has(word)) {
      const prefixed = this.vocabulary.filter((other) => word.length > 1 && other.startsWith(word) && other !== word);
      prefixed.slice(0, 50).forEach((other) => add(other, this.postings.has(word) ? 0.4 : 0.7));
    }
    if (!found.size && asWritten.length > 3) this.written.forEach((other, text) => isNear(asWritten, text) && add(other, 0.7));
    return found;
  }

  /** Ids of items with scores, the best first, and what was looked for. */
  rank(query) {
    const all = [...words(query)];
    const content = all.filter((word) => !STOP_WORDS.has(query.slice(word.start, word.end).toLowerCase()));
    const asked = content.length ? content : all;
    const last = all.length && asked.length && asked[asked.length - 1] === all[all.length - 1] && /\S$/.test(query);
    const sums = new Map(), terms = [], stems = asked.map((word) => word.stem);
    let total = 0;
    new Map(asked.map((word) => [word.stem, word])).forEach(({ start, end }, word) => {
      const variants = this.variants(word, query.slice(start, end).toLowerCase(), last && end === query.length);
      const rarity = this.postings.has(word) ? Math.max(0.5, this.rarity(word)) : variants.size ? 1 : 3;
      total += rarity;
      terms.push(variants);
      const best = new Map();
      for (const [other, weight] of variants) {
        for (const [id, value] of this.postings.get(other)) {
          const score = weight * value * this.rarity(other);
          if (score > (best.get(id)?.score || 0)) best.set(id, { score, share: weight >= 1 ? 1 : 0.8 });
        }
      }
      for (const [id, { score, share }] of best) {
        const sum = sums.get(id) || { score: 0, covered: 0 };
        sums.set(id, { score: sum.score + score, covered: sum.covered + share * rarity });
      }
    });
    const ranked = [...sums].map(([id, { score, covered }]) => {
      const title = this.titles[id];
      const asTitle = stems.filter((word) => title.includes(word)).length / Math.max(stems.length, 1);
      const whole = asTitle === 1 ? 1.5 : 1 + 0.2 * asTitle;
      return { id, score: score * whole * Math.pow(covered / total, 2) * (this.items[id].weight ?? 1) };
    });
    ranked.sort((a, b) => b.score - a.score || a.id - b.id);
    return { ranked, terms };
  }

  /** What the page shows of an item: which words of which fields are found. */
  matches(id, terms) {
    const wanted = new Set(terms.flatMap((variants) => [...variants.keys()]));
    return Object.keys(FIELDS).map((field) => {
      const ranges = [];
      let before = 0; // the parts of a path are counted one after the other
      for (const part of [this.items[id][field] || []].flat()) {
        for (const { stem, start, end } of words(part)) {
          if (wanted.has(stem)) ranges.push({ start: before + start, end: before + end, value: end - start });
        }
        before += part.length;
      }
      return { id, field, score: 0, value: { highlight: { ranges } } };
    });
  }

  search({ input, page }) {
    const query = typeof input === "string" ? input : "";
    const { ranked, terms } = this.rank(query);
    const from = page?.from || 0;
    const items = ranked.slice(from, from + PAGE_SIZE).map(({ id }) => ({ id, matches: this.matches(id, terms) }));
    const pagination = { total: ranked.length };
    if (from) pagination.prev = { size: PAGE_SIZE, from: from - PAGE_SIZE };
    if (from + PAGE_SIZE < ranked.length) pagination.next = { size: PAGE_SIZE, from: from + PAGE_SIZE };
    return { items, pagination, aggregations: [], query: { select: { documents: {}, terms: {} }, values: [] } };
  }
}

/** Whether two words differ by one letter: another one, one more, one less, or two that changed places. */
function isNear(a, b) {
  if (Math.abs(a.length - b.length) > 1) return false;
  let start = 0;
  while (start < a.length && a[start] === b[start]) start++;
  const rest = [a.slice(start), b.slice(start)];
  if (a.length === b.length) {
    const [x, y] = rest;
    return x.slice(1) === y.slice(1) || (x.slice(2) === y.slice(2) && x[0] === y[1] && x[1] === y[0]);
  }
  return a.length > b.length ? rest[0].slice(1) === rest[1] : rest[1].slice(1) === rest[0];
}

let index = null;
if (typeof self !== "undefined") {
  self.onmessage = ({ data: { type, data } }) => {
    try {
      if (type === SETUP) {
        index = new Index(data.items);
        self.postMessage({ type: READY });
      } else if (type === QUERY) {
        self.postMessage({ type: RESULT, data: index.search(data) });
      }
    } catch (error) {
      self.postMessage({ type: FAILED });
    }
  };
}
