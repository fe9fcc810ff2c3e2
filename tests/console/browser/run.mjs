// Runs one scenario against the console in chromium. The Go test starts it with a JSON object as the argument:
//   {scenario, urls, shots, chromium, profile, ...}
// A line "do THING" on the standard output asks the test to do something, such as killing a node; the test answers with
// a line when that is done. The process ends with 0 if all is as it should be.
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import * as others from "./scenarios.mjs";
import * as finds from "./finds.mjs";
import * as rights from "./rights.mjs";

const scenarios = { ...others, ...finds, ...rights };

const o = JSON.parse(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export const options = o;

const context = await chromium.launchPersistentContext(o.profile, {
	executablePath: o.chromium, headless: true, viewport: { width: 1280, height: 800 }, reducedMotion: "reduce",
	args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync"],
});
context.setDefaultTimeout(60000); // far longer than a busy machine needs
const faults = [];
let expected = () => false;

const tools = {
	...o,
	context,
	// open returns a page that reports everything that a browser complains about.
	async open(url, settings = {}) {
		const page = await context.newPage();
		if (settings.viewport) await page.setViewportSize(settings.viewport);
		if (settings.dark) await page.emulateMedia({ colorScheme: "dark", reducedMotion: "reduce" });
		page.on("pageerror", (e) => faults.push(`error in the page: ${e.stack ?? e}`));
		page.on("console", (m) => {
			const text = `${m.text()} ${m.location().url}`;
			if (["error", "warning"].includes(m.type()) && !expected(text)) faults.push(`console: ${text}`);
		});
		page.on("dialog", (d) => {
			faults.push(`a script of the data ran: ${d.message()}`);
			d.dismiss();
		});
		await page.goto(`${url}/console/`);
		return page;
	},
	expect(f) {
		expected = f;
	},
	async shot(page, name) {
		await page.screenshot({ path: `${o.shots}/${name}.png`, fullPage: true });
	},
	async ask(what) {
		console.log(`do ${what}`);
		await lines.next();
	},
	check(ok, what) {
		if (!ok) throw new Error(what);
	},
};

let code = 0;
try {
	await scenarios[o.scenario](tools);
	for (const f of faults) console.error(f);
	if (faults.length > 0) code = 1;
} catch (e) {
	console.error(e.stack ?? e);
	for (const f of faults) console.error(f);
	for (const [i, p] of context.pages().entries()) await p.screenshot({ path: `${o.shots}/failed-${o.scenario}-${i}.png`, fullPage: true }).catch(() => {});
	code = 1;
}
await context.close();
process.exit(code);
