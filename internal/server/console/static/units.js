// Durations, sizes and rules in the notation of the command line: 72h, 1h30m, 10d; 10GiB, 1.5MB, 4096; region=eu.
const times = { w: 604800000, d: 86400000, h: 3600000, m: 60000, s: 1000, ms: 1 };
const sizes = { TiB: 2 ** 40, GiB: 2 ** 30, MiB: 2 ** 20, KiB: 1024, TB: 1e12, GB: 1e9, MB: 1e6, KB: 1e3,
	kB: 1e3, B: 1 };

// Each unit has read, which returns a whole number or undefined, and write, its inverse.
export const duration = {
	like: "a time with a unit, such as 30m, 72h or 10d",
	read(text) {
		const all = text.replaceAll(" ", "").replace("min", "m");
		if (!/^(\d+(\.\d+)?(ms|[wdhms]))+$/.test(all)) return;
		const sum = [...all.matchAll(/([\d.]+)(ms|[wdhms])/g)].reduce((n, [, v, unit]) => n + Number(v) * times[unit], 0);
		return Number.isInteger(sum) ? sum : undefined;
	},
	write(ms) {
		let text = "";
		for (const unit of ["h", "m", "s", "ms"]) {
			const n = Math.floor(ms / times[unit]);
			if (n > 0) text += n + unit;
			ms -= n * times[unit];
		}
		return text || "0s";
	},
};

export const size = {
	like: "a size, such as 4096, 64MiB or 10GiB",
	read(text) {
		const [, digits, unit] = text.trim().match(/^(\d+(?:\.\d+)?)\s*([TGMKk]i?B|B)?$/) ?? [];
		const n = Number(digits) * (sizes[unit ?? "B"] ?? NaN);
		return Number.isSafeInteger(n) ? n : undefined;
	},
	write(n) {
		const units = Object.keys(sizes).filter((u) => u !== "B" && n > 0 && n % sizes[u] === 0);
		const [unit] = units.sort((a, b) => sizes[b] - sizes[a]);
		return unit ? n / sizes[unit] + unit : String(n);
	},
};

export const number = {
	like: "a whole number",
	read: (text) => (/^-?\d+$/.test(text.trim()) ? Number(text) : undefined),
	write: String,
};

// past reads a point in time as milliseconds: some time ago, or a date, of the browser's zone unless it says another.
export const past = {
	like: "a time, such as 2h ago, 2026-01-31 or 2026-01-31 12:00",
	read(text, now = Date.now()) {
		const ago = text.trim().match(/^(.+) ago$/), span = ago && duration.read(ago[1]);
		const at = ago ? now - span : /^\d{4}-\d\d-\d\d$/.test(text.trim()) ? Date.parse(`${text.trim()}T00:00`)
			: /^\d{4}-\d\d-\d\d[T ]\d/.test(text.trim()) ? Date.parse(text.trim()) : NaN;
		return span === undefined || Number.isNaN(at) ? undefined : at;
	},
};

// The operators of a rule: the one that comes first in the text counts; of two at one place, the first of these.
const operators = [["^=", "prefix"], ["*=", "glob"], ["~=", "regexp"], ["=", "exact"]];

function rule(text) {
	let at = text.length, found = { header: text, match: "exists", pattern: "" };
	for (const [sign, match] of operators) {
		const i = text.indexOf(sign);
		if (i >= 0 && i < at) {
			at = i;
			found = { header: text.slice(0, i), match, pattern: text.slice(i + sign.length) };
		}
	}
	return found;
}

// rules has a rule on each line.
export const rules = {
	read: (text) => text.split("\n").filter((line) => line.trim()).map(rule),
	write: (all = []) => all.map((r) => r.header + (operators.find(([, m]) => m === r.match)?.[0] ?? "")
		+ r.pattern).join("\n"),
};
