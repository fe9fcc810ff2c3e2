// Runs scenarios against the console in chromium, one after the other, in one browser: each in a context of its own,
// which shares nothing with the others. The Go test starts it with a JSON object as the argument: {shots, chromium}.
// Each line of the standard input is a scenario: {scenario, urls}. What it says comes on the standard output:
//   do THING     the test is to do something, such as killing a node, and answers with a line when that is done
//   fault TEXT   something is not as it should be; TEXT is a JSON string
//   end          the scenario is over
// Other lines are for people. Without more input the process ends.
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import * as others from "./scenarios.mjs";
import * as finds from "./finds.mjs";
import * as rights from "./rights.mjs";

const scenarios = { ...others, ...finds, ...rights };

const o = JSON.parse(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const browser = await chromium.launch({
	executablePath: o.chromium, headless: true,
	args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync"],
});

async function run({ scenario, urls }) {
	const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce" });
	context.setDefaultTimeout(60000); // far longer than a busy machine needs
	const faults = [];
	const fault = (text) => void faults.push(text);
	let expected = () => false;
	const tools = {
		urls,
		context,
		// open returns a page that reports everything that a browser complains about.
		async open(url, settings = {}) {
			const page = await context.newPage();
			if (settings.viewport) await page.setViewportSize(settings.viewport);
			if (settings.dark) await page.emulateMedia({ colorScheme: "dark", reducedMotion: "reduce" });
			page.on("pageerror", (e) => fault(`error in the page: ${e.stack ?? e}`));
			page.on("console", (m) => {
				const text = `${m.text()} ${m.location().url}`;
				if (["error", "warning"].includes(m.type()) && !expected(text)) fault(`console: ${text}`);
			});
			page.on("dialog", (d) => {
				fault(`a script of the data ran: ${d.message()}`);
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
	try {
		await scenarios[scenario](tools);
	} catch (e) {
		fault(String(e.stack ?? e));
		for (const [i, p] of context.pages().entries()) {
			await p.screenshot({ path: `${o.shots}/failed-${scenario}-${i}.png`, fullPage: true }).catch(() => {});
		}
	}
	for (const text of faults) console.log(`fault ${JSON.stringify(text)}`);
	await context.close();
	console.log("end");
}

for (;;) {
	const { value, done } = await lines.next();
	if (done) break;
	await run(JSON.parse(value));
}
await browser.close();
