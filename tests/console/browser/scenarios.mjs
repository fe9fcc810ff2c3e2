// What is tested in the browser. Each function gets the tools of run.mjs.

import { readFileSync } from "node:fs";

const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
export const phone = { width: 360, height: 740 };
const script = "<script>alert(1)</script><img src=x onerror=alert(2)>";

export const go = (page, hash) => page.evaluate((h) => void (location.hash = h), hash);
export const heading = (page, name) => page.getByRole("heading", { level: 1 }).filter({ hasText: name }).waitFor();
export const row = (page, name) => page.getByRole("row").filter({ hasText: name });

// fits fails if the page scrolls to the side.
export async function fits(t, page, what) {
	// Plots are drawn anew a moment after the screen has changed.
	await page.waitForFunction(() => document.scrollingElement.scrollWidth <= innerWidth).catch(() => {});
	const [wide, seen] = await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth]);
	t.check(wide <= seen, `${what} is ${wide} px wide, the screen has ${seen}`);
}

// named fails if something that can be operated has no name for a screen reader, or cannot be reached with Tab.
export async function named(t, page, what) {
	const bad = await page.evaluate(() => [...document.querySelectorAll("a,button,input,select,textarea,summary,[role=img],[role=region]")]
		.filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.labels?.[0]?.textContent.trim() || e.textContent.trim()) || e.tabIndex < 0 && !e.disabled && e.getAttribute("role") !== "img")
		.map((e) => e.outerHTML.slice(0, 200)));
	t.check(bad.length === 0, `${what}: without a name, or not to be reached: ${bad.join("\n")}`);
}

// usable fails if axe-core finds anything that keeps somebody from using the page: contrast, names, roles, landmarks.
export async function usable(t, page, what) {
	await page.locator("main:not(.stale)").waitFor(); // gray text has less contrast
	await page.evaluate(axe);
	const bad = await page.evaluate(async () => (await globalThis.axe.run(document, { resultTypes: ["violations"] }))
		.violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(" ")}`));
	t.check(bad.length === 0, `${what}: ${bad.join("\n")}`);
}

export async function openParts(page) {
	const closed = page.locator("details:not([open]) > summary"); // some come late
	while (await closed.count()) await closed.first().click();
}

// all visits every page, with settings such as a phone's.
async function all(t, page, suffix, each = async () => {}) {
	const visit = async (hash, title, name, ready) => {
		await go(page, hash);
		await heading(page, title);
		await ready?.();
		await named(t, page, name);
		await usable(t, page, name + suffix);
		await each(name);
		await t.shot(page, `${name}${suffix}`);
	};
	await visit("#/", "Overview", "overview", () => page.getByText("Healthy").waitFor());
	await visit("#/topics", "Topics", "topics", () => row(page, "orders").first().waitFor());
	await visit("#/topics/orders", "orders", "topic", async () => {
		await row(page, "billing").first().waitFor();
		await openParts(page);
		await page.getByRole("button", { name: "Peek" }).click();
		await page.locator(".messages li").first().waitFor();
		await page.getByLabel("Quota messages").waitFor();
	});
	await visit("#/topics/orders/billing", "billing", "channel", async () => {
		await page.getByText("holder").first().waitFor();
		await openParts(page);
		await page.getByRole("region", { name: "Messages in flight" }).getByRole("row").nth(1).waitFor();
		await page.getByRole("button", { name: "Peek" }).click();
		await page.getByText("as read at").or(page.getByText("There is no message")).waitFor();
	});
	await visit("#/nodes", "Nodes", "nodes", () => page.locator(".node").first().waitFor());
	await visit("#/nodes/n1", "n1", "node", async () => {
		await page.getByText("Version", { exact: true }).waitFor();
		await openParts(page);
		await page.getByRole("region", { name: "Settings" }).waitFor();
	});
	await visit("#/audit", "Audit", "audit", () => row(page, "/topic/create").first().waitFor());
}

export async function pages(t) {
	const page = await t.open(t.urls[0]);
	await all(t, page, "");
	const dark = await t.open(t.urls[1], { dark: true });
	await all(t, dark, "-dark");
	const [back, text] = await dark.evaluate(() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]);
	t.check(back === "rgb(18, 22, 27)" && text === "rgb(228, 233, 238)", `in the dark the page is ${back} with ${text}`);
	const small = await t.open(t.urls[2], { viewport: phone });
	await all(t, small, "-phone", (name) => fits(t, small, name));
}

// reads: what the pages say is easy to read and to point at, whatever looks the user's system has.
export async function reads(t) {
	const page = await t.open(t.urls[0]);
	await page.emulateMedia({ forcedColors: "active", reducedMotion: "reduce" });
	await heading(page, "Overview");
	const line = await page.getByRole("link", { name: "Overview" }).evaluate((e) => getComputedStyle(e).outlineStyle);
	t.check(line === "solid", `with forced colors nothing shows which page is open: ${line}`);
	const plot = page.getByRole("slider", { name: "Messages waiting" });
	await plot.waitFor();
	const mark = await page.locator(".legend i.line-1").first().evaluate((e) => getComputedStyle(e).backgroundColor);
	t.check(mark === "rgb(11, 107, 138)", `with forced colors the legend's first line is ${mark}`);
	await t.shot(page, "forced-colors");
	// The keyboard and the mouse read every point of a plot.
	const says = () => plot.getAttribute("aria-valuetext");
	t.check(/^now: waiting \d/.test(await says()), `the plot says ${await says()}`);
	await plot.focus();
	await page.keyboard.press("End");
	await page.getByText(/at \d\d:\d\d:\d\d/).waitFor();
	t.check(/^\d\d:\d\d:\d\d: waiting \d/.test(await says()), `pointed at, the plot says ${await says()}`);
	await page.keyboard.press("Escape");
	await page.getByText(/at \d\d:\d\d:\d\d/).waitFor({ state: "detached" });
	// Lists and filters are in the address.
	await go(page, "#/topics");
	await page.getByLabel("Name contains").fill("mail");
	await page.getByRole("button", { name: "Waiting" }).click();
	await page.getByRole("link", { name: "mail.outgoing" }).click();
	await heading(page, "mail.outgoing");
	await page.goBack();
	await page.getByText("1–1 of 1").waitFor();
	await page.reload();
	await page.getByText("1–1 of 1").waitFor();
	t.check((await page.getByLabel("Name contains").inputValue()) === "mail", "reloading loses the filter");
	t.check((await page.locator("th[aria-sort]").innerText()).includes("Waiting"), "reloading loses the order");
	await go(page, "#/topics?offset=5000"); // a bookmark of a longer list
	await row(page, "orders").first().waitFor();
	await go(page, "#/audit?contains=mail.outgoing");
	await page.getByText(/^1 of \d+ entries/).waitFor();
	for (const name of ["Who", "Of", "Result"]) {
		const box = await page.getByRole("columnheader", { name, exact: true }).boundingBox();
		t.check(box.x + box.width <= 1280, `${name} is outside of the screen`);
	}
	await go(page, "#/nothing");
	await heading(page, "No such page");
	// More channels and deferred messages than a page shows: the page says so, and leads to the others.
	await go(page, "#/topics/crowd");
	await page.getByText("1–100 of 101").waitFor();
	await page.getByRole("button", { name: "Next" }).click();
	await page.getByText("101–101 of 101").waitFor();
	await go(page, "#/topics/crowd/channel-000");
	await page.locator("summary", { hasText: "Deferred" }).click();
	await page.getByText("Those that are due first: 100 of 101.").waitFor();
}

// slow: an answer takes long. The page says that it waits, and a second click does nothing twice.
export async function slow(t) {
	const page = await t.open(t.urls[0]);
	await heading(page, "Overview");
	let give;
	const given = new Promise((done) => (give = done));
	await page.route("**/channels?**", async (r) => {
		await given;
		await r.continue().catch(() => {}); // the page may have given up by then
	});
	await go(page, "#/topics/returns");
	await heading(page, "returns");
	await page.getByText("Asking the node…").waitFor();
	await t.shot(page, "slow");
	give();
	await page.getByText("Asking the node…").waitFor({ state: "detached" });
	await page.getByRole("region", { name: "Partitions" }).waitFor();
	let asked = 0, answer;
	const held = new Promise((done) => (answer = done));
	await page.route("**/pub?**", async (r) => {
		asked++;
		await held;
		await r.continue();
	});
	await page.getByText("Publish", { exact: true }).click();
	await page.getByLabel("Message", { exact: true }).fill("once");
	await page.getByRole("button", { name: "Publish" }).click();
	await page.getByText("Waiting for the node…").waitFor();
	await page.getByRole("button", { name: "Publish" }).click();
	answer();
	await page.getByText("The message is stored in returns.").waitFor();
	t.check(asked === 1, `two clicks sent ${asked} messages`);
	await page.getByText("Waiting for the node…").waitFor({ state: "detached" });
	// A click that comes twice saves once, and hears of nobody else's change.
	await page.getByText("Settings", { exact: true }).click();
	await page.getByLabel("Retention age").fill("604800000");
	await page.getByRole("button", { name: "Save" }).click();
	await page.getByText("“604800000” is not a time with a unit, such as 30m, 72h or 10d. Nothing was changed.").waitFor();
	await page.getByLabel("Retention age").fill("7d");
	await page.getByText("7 days", { exact: true }).waitFor();
	await page.getByLabel("Retention bytes").fill("10 GiB");
	await page.getByRole("button", { name: "Save" }).evaluate((e) => { e.click(); e.click(); });
	await page.getByText("The settings are saved.").waitFor();
	t.check((await page.locator(".settings .trouble").count()) === 0, "saving twice is a conflict with oneself");
	const kept = [await page.getByLabel("Retention age").inputValue(), await page.getByLabel("Retention bytes").inputValue()];
	t.check(kept.join() === "168h,10GiB", `the settings are ${kept}`);
	// Nothing answers any more.
	t.expect(() => true);
	await page.route((u) => !u.pathname.startsWith("/console/"), () => {});
	await page.getByText("No answer for").waitFor();
	await page.getByText("the node did not answer within 5 s").waitFor();
}

// still: a page that stays open asks again and again, and keeps nothing of the questions that were answered.
export async function still(t) {
	await t.context.addInitScript(() => {
		globalThis.heard = { all: 0, now: 0 }; // listeners of signals
		for (const [verb, more] of [["addEventListener", 1], ["removeEventListener", -1]]) {
			const own = AbortSignal.prototype[verb];
			AbortSignal.prototype[verb] = function (...args) {
				heard.all += Math.max(more, 0);
				heard.now += more;
				return own.apply(this, args);
			};
		}
	});
	const page = await t.open(t.urls[0]);
	await heading(page, "Overview");
	await page.waitForFunction(() => heard.all >= 16);
	const now = await page.evaluate(() => heard.now);
	t.check(now < 8, `of 16 requests or more, ${now} still listen for the end of the page`); // it asks for four things
}

// texts: what messages, names and headers have is shown, and never run.
export async function texts(t) {
	t.expect((text) => text.includes("404") || text.includes("400")); // the browser tells of the topic that is not there
	const page = await t.open(t.urls[0]);
	await go(page, "#/topics/orders");
	await page.getByText("Publish", { exact: true }).click();
	await page.getByLabel("Message", { exact: true }).fill(script);
	await page.getByLabel("Key").fill(script);
	await page.getByRole("button", { name: "Publish" }).click();
	await page.getByText("The message is stored in orders.").waitFor();
	await page.getByText("Peek at stored messages").click();
	await page.getByLabel("Count").fill("100");
	for (const form of ["text", "JSON", "hex"]) {
		await page.getByLabel("Bodies as").selectOption(form === "JSON" ? "json" : form);
		await page.getByRole("button", { name: "Peek" }).click();
		if (form === "text") await page.locator("pre", { hasText: script }).first().waitFor();
	}
	await page.locator(".header", { hasText: script }).first().waitFor();
	t.check((await page.locator("main script, main img[src=x]").count()) === 0, "a body became an element");
	// What is read is what is there: no number is rounded, and no character hides or turns others around.
	await go(page, "#/topics/payments");
	await page.getByText("Publish", { exact: true }).click();
	for (const body of ['{"id":12345678901234567890,"price":1.10,"of":[]}', "\u202egnp.exe \u001b[31m"]) {
		await page.getByLabel("Message", { exact: true }).fill(body);
		const [reply] = await Promise.all([page.waitForResponse((r) => r.url().includes("/pub?")),
			page.getByRole("button", { name: "Publish" }).click()]);
		t.check(reply.ok(), `publishing: ${reply.status()}`);
	}
	await page.getByText("Peek at stored messages").click();
	await page.getByLabel("Bodies as").selectOption("json");
	await page.getByRole("button", { name: "Peek" }).click();
	await page.getByText("3 messages, as read at").waitFor();
	const shown = await page.locator(".messages pre").allTextContents();
	t.check(shown.includes('{\n  "id": 12345678901234567890,\n  "price": 1.10,\n  "of": []\n}')
		&& shown.includes("\\u202egnp.exe \\u001b[31m"), `the bodies are shown as ${JSON.stringify(shown)}`);
	await page.getByRole("button", { name: "Next messages" }).click();
	await page.getByText("There is no message.").waitFor();
	await go(page, `#/topics/${encodeURIComponent(script)}`); // there is no such topic, and its name is shown
	await heading(page, script);
	await go(page, "#/topics");
	await page.getByLabel("Name contains").fill(script);
	await page.getByText("No topic has that in its name.").waitFor();
	await go(page, "#/audit");
	await page.getByText(/^\d+ of \d+ entries/).waitFor();
	await page.getByLabel("Contains").fill("<script>");
	await page.getByText("No entry contains that.").waitFor(); // not that nothing was changed
	await t.shot(page, "texts");
}

// large: a topic with many partitions, and a body as large as they come, keep the page usable.
export async function large(t) {
	const page = await t.open(t.urls[1]);
	await go(page, "#/topics/wide");
	const table = page.getByRole("region", { name: "Partitions" });
	await page.getByText("1–25 of 200").waitFor();
	t.check((await table.getByRole("row").count()) === 26, "the table shows more partitions than it says");
	await usable(t, page, "many partitions");
	await t.shot(page, "partitions");
	const pager = page.getByRole("navigation", { name: "Pages of partitions" });
	for (const shown of ["26–50", "51–75"]) {
		await pager.getByRole("button", { name: "Next" }).click();
		await page.getByText(`${shown} of 200`).waitFor();
	}
	await table.getByRole("button", { name: "Transfer the leadership of partition 50" }).waitFor();
	await page.getByText("Peek at stored messages").click();
	await page.getByRole("button", { name: "Peek" }).click();
	const body = page.locator(".messages pre").first();
	await body.waitFor();
	await page.getByText("The first 65,536 characters of it:").waitFor();
	t.check((await body.textContent()).length === 65536, `${(await body.textContent()).length} characters are shown`);
	await page.getByLabel("Bodies as").selectOption("json");
	await body.getByText('{\n  "large"').waitFor();
	await t.shot(page, "large-body");
}

// settings: two tabs change one setting; the second is told of the first.
export async function settings(t) {
	const tabs = [await t.open(t.urls[0]), await t.open(t.urls[1])];
	t.expect((text) => text.includes("409"));
	for (const tab of tabs) {
		await go(tab, "#/topics/orders/billing");
		await tab.getByText("Settings", { exact: true }).click();
		await tab.locator(".settings").getByLabel("Messages per second").waitFor();
	}
	await tabs[0].locator(".settings").getByLabel("Messages per second").fill("100");
	await tabs[1].locator(".settings").getByLabel("Messages per second").fill("200");
	await tabs[1].getByLabel("Deliveries before a message is a dead letter").fill("7");
	await tabs[0].getByRole("button", { name: "Save" }).click();
	await tabs[0].getByText("The settings are saved.").waitFor();
	await tabs[1].getByRole("button", { name: "Save" }).click();
	await tabs[1].getByText("Somebody else changed the settings meanwhile").waitFor();
	await tabs[1].getByText("was 100").waitFor();
	await t.shot(tabs[1], "settings-conflict");
	await tabs[1].getByRole("button", { name: "Save" }).click();
	await tabs[1].getByText("The settings are saved.").waitFor();
	await tabs[0].getByRole("button", { name: "Reload" }).click();
	await tabs[0].waitForFunction(() => [...document.querySelectorAll("input")].some((e) => e.value === "200"));
}

// actions: what changes things, with the keyboard.
export async function actions(t) {
	const page = await t.open(t.urls[1]);
	await go(page, "#/topics");
	await page.getByLabel("New topic").fill("made");
	await page.keyboard.press("Enter");
	await page.getByText("Topic made exists.").waitFor();
	t.expect((text) => text.includes("400"));
	await page.getByLabel("New topic").fill("another");
	await page.getByLabel("Partitions").fill("65537");
	await page.keyboard.press("Enter");
	await page.getByText("a topic has from 1 to 65,536").waitFor(); // not the API's code
	await go(page, "#/topics/made");
	// Nothing has happened in it yet: its numbers are known all the same, after 10 s at the latest.
	await page.locator(".facts > div", { hasText: "Waiting" }).getByText("0", { exact: true }).waitFor({ timeout: 120000 });
	await page.locator(".facts > div", { hasText: "Stored" }).getByText(/^\d+ (B|KiB)$/).waitFor();
	await page.getByLabel("New channel").fill("c");
	await page.keyboard.press("Enter");
	await page.getByText("Channel c exists.").waitFor();
	await row(page, "c").getByRole("link", { name: "c" }).click();
	await heading(page, "made");
	await page.getByRole("button", { name: "Pause" }).press("Enter");
	await page.getByRole("button", { name: "Resume" }).press("Enter");
	await page.getByText("Channel c goes on.").waitFor();
	await page.locator("summary", { hasText: "Seek" }).click();
	await page.getByRole("combobox", { name: "To" }).selectOption("end");
	await page.getByRole("button", { name: "Seek…" }).press("Enter");
	await page.getByRole("dialog").getByRole("textbox").fill("c");
	await page.keyboard.press("Enter");
	await page.getByText("Channel c goes on at: the next published message.").waitFor();
	await go(page, "#/topics/made");
	const button = page.getByRole("button", { name: "Delete the topic…" });
	await button.focus();
	await page.keyboard.press("Enter");
	const dialog = page.getByRole("dialog");
	t.check(await dialog.getByRole("textbox").evaluate((e) => e === document.activeElement), "the dialog has no focus");
	t.check(await dialog.getByRole("button", { name: "Delete the topic" }).isDisabled(), "it can be deleted without its name");
	await page.keyboard.type("mad");
	await page.keyboard.press("Enter");
	t.check(await dialog.isVisible(), "a part of the name is enough");
	await usable(t, page, "dialog");
	await t.shot(page, "dialog");
	await page.keyboard.press("Escape");
	await dialog.waitFor({ state: "detached" });
	t.check(await button.evaluate((e) => e === document.activeElement), "the focus does not come back after the dialog");
	await button.press("Enter"); // the page may draw its buttons anew meanwhile
	await dialog.waitFor();
	await page.keyboard.type("made");
	await page.keyboard.press("Enter");
	await page.getByText("Topic made was deleted.").waitFor();
	await heading(page, "Topics");
	// A node is drained, and takes part again.
	await go(page, "#/nodes");
	await page.getByRole("button", { name: "Drain node n1" }).click();
	await page.getByRole("button", { name: "End the drain of node n1" }).click();
	await page.getByText("takes leaderships and replicas again").waitFor();
	await go(page, "#/topics/orders");
	await page.getByRole("button", { name: "Transfer the leadership of partition 0" }).click();
	await page.getByText("is to lead partition 0").waitFor();
	// The first Tab reaches the link that skips the header.
	await page.reload();
	await heading(page, "orders");
	await page.keyboard.press("Tab");
	t.check((await page.evaluate(() => document.activeElement.textContent)) === "Skip to content", "the first Tab skips no header");
}

// move: a copy goes from one node to another, and the page shows when it is there.
export async function move(t) {
	const page = await t.open(t.urls[0]);
	await go(page, "#/topics/parcels");
	const table = page.getByRole("region", { name: "Partitions" });
	const replicas = table.getByRole("row").nth(1).getByRole("cell").nth(3); // after State, Leader and In sync
	await page.locator("summary", { hasText: "Move a replica" }).click();
	const form = page.getByRole("form", { name: "Move a replica" });
	const [partition, source, target] = [0, 1, 2].map((i) => form.locator("input, select").nth(i));
	await partition.fill("0");
	await target.locator("option").nth(1).waitFor({ state: "attached" });
	const options = (list) => list.locator("option").evaluateAll((all) => all.map((o) => o.textContent.trim()).filter(Boolean));
	const [from, to] = [await options(source), await options(target)];
	t.check(from.length === 2 && to.length === 1 && !from.includes(to[0]), `from ${from} to ${to}`);
	await source.selectOption(from[1]);
	await target.selectOption(to[0]);
	await t.shot(page, "move");
	await form.getByRole("button", { name: "Move" }).click();
	await replicas.filter({ hasText: to[0] }).filter({ hasNotText: from[1] }).waitFor();
	await table.getByRole("row").nth(1).getByText("ok").waitFor();
	await replicas.filter({ hasText: from[0] }).waitFor();
}

// redrive: the page of a channel counts its dead letter, and publishes it again.
export async function redrive(t) {
	const page = await t.open(t.urls[2]);
	await go(page, "#/topics/letters/worker");
	const fact = (name, value) => page.locator("main").getByText(name, { exact: true }).locator("..").getByText(value, { exact: true });
	await fact("Dead letters", "1").waitFor();
	await fact("Waiting", "0").waitFor();
	await page.getByRole("button", { name: "Redrive dead letters…" }).click();
	const dialog = page.getByRole("dialog");
	await dialog.getByText("1 dead letter of all channels waits in topic letters.DLQ.").waitFor();
	await usable(t, page, "the question before a redrive");
	await dialog.getByRole("button", { name: "Redrive" }).click();
	await page.getByText("1 dead letter went back into letters.").waitFor();
	await fact("Waiting", "1").waitFor();
	await page.getByText("Peek at waiting messages").click();
	await page.getByRole("button", { name: "Peek" }).click();
	await page.locator(".messages li", { hasText: "a letter that nobody could read" }).waitFor();
	await t.shot(page, "redrive");
}

// attends: the overview says what waits for a person, and leads there; a channel says where it lags, a message its life.
export async function attends(t) {
	const page = await t.open(t.urls[1]);
	const list = page.getByRole("region", { name: "Needs attention" });
	const entry = (name, why) => list.getByRole("row").filter({ hasText: name }).filter({ hasText: why });
	await entry("orders / mail", "no consumers").waitFor({ timeout: 120000 });
	await entry("letters.DLQ", "dead letters").waitFor();
	t.check((await entry("orders / billing", "no consumers").count()) === 0, "a channel that is consumed is without consumers");
	await t.shot(page, "attention");
	await list.getByRole("link", { name: "orders / mail" }).click();
	await heading(page, "mail");
	const lag = page.getByRole("region", { name: "Partitions" });
	await lag.getByRole("row").nth(3).waitFor();
	await page.getByText("Peek at waiting messages").click();
	await page.getByRole("button", { name: "Peek" }).click();
	await page.locator(".messages button.name").first().click();
	const dialog = page.getByRole("dialog");
	await dialog.getByRole("region", { name: "Channels of the message" }).getByRole("row").filter({ hasText: "mail" }).waitFor();
	await usable(t, page, "a trace");
	await t.shot(page, "trace");
	await dialog.getByRole("button", { name: "Close" }).click();
	await dialog.waitFor({ state: "detached" });
	// A filter is written as on the command line.
	await page.getByText("Settings", { exact: true }).click();
	const rules = page.getByLabel("Rules, one a line");
	const saved = async (text, said) => {
		await rules.fill(text);
		await page.getByRole("button", { name: "Save" }).click();
		await page.getByText(said).waitFor();
		await page.getByRole("button", { name: "Close this message" }).click();
		await page.getByRole("button", { name: "Reload" }).click();
	};
	await saved("region=eu\nkind^=ord\nurgent", "The settings are saved.");
	t.check((await rules.inputValue()) === "region=eu\nkind^=ord\nurgent", `the rules are ${await rules.inputValue()}`);
	await saved("", "The settings are saved.");
	// The plots of hours, which the address remembers.
	await page.getByLabel("Plots of").selectOption("hours");
	await page.getByText("in the last 12 hours").or(page.getByRole("slider", { name: "the last 12 hours" })).first().waitFor();
	await page.reload();
	t.check((await page.getByLabel("Plots of").inputValue()) === "hours", "reloading loses the range of the plots");
	// One message is finished, after a question.
	await go(page, "#/topics/orders/billing");
	await page.locator("summary", { hasText: "In flight" }).click();
	await page.getByRole("button", { name: "Finish…" }).first().click();
	await page.getByRole("dialog").getByRole("button", { name: "Finish" }).click();
	await page.getByText(/^Message [0-9a-f]{16} is finished\./).waitFor();
	// What nodes have left.
	await go(page, "#/nodes");
	const node = page.getByRole("listitem", { name: "Node n3" });
	for (const [name, value] of [["Disk free", /^[\d.]+ [GTM]iB$/], ["Memory", /^[\d.]+ [MG]iB$/], ["Up for", /^\d+ (s|min|h)$/]]) {
		await node.locator(".facts > div", { hasText: name }).getByText(value).waitFor();
	}
	await t.shot(page, "vitals");
}

// dead: a node is killed while its leaders' numbers are on the screen of another one, and then that one, too.
export async function dead(t) {
	const page = await t.open(t.urls[0]);
	t.expect(() => true); // the browser tells of every request that failed
	await page.getByText("Healthy").waitFor();
	await t.ask("kill n3");
	await page.getByText("Node n3 gives no numbers: it is dead. What it leads is missing here.").waitFor();
	await page.locator(".health.bad").waitFor();
	await t.shot(page, "node-dead");
	await go(page, "#/nodes");
	await page.getByRole("listitem", { name: "Node n3" }).getByText(/dead for/).waitFor();
	await page.getByRole("listitem", { name: "Node n1" }).getByText("live", { exact: true }).waitFor();
	await t.shot(page, "nodes-dead");
	await go(page, "#/topics");
	await page.getByText("Node n3 gives no numbers").waitFor();
	await row(page, "orders").first().waitFor();
	await go(page, "#/");
	await page.locator(".health.bad").waitFor();
	await t.ask("kill n1");
	await page.getByText(/No answer for/).waitFor();
	await page.getByText(/\d+ s/).first().waitFor();
	await page.locator(".health.unknown").waitFor();
	t.check((await page.locator(".health.good, .node.good").count()) === 0, "something is green although no node answers");
	await t.shot(page, "no-answer");
	await t.ask("start n1 n3");
	await page.getByText("Healthy").waitFor({ timeout: 120000 });
	await page.getByText(/No answer for/).waitFor({ state: "detached" });
	// A stopped process answers nobody, and is named like a dead one; the page goes on meanwhile.
	await t.ask("pause n3");
	await page.getByText("Node n3 gives no numbers").waitFor();
	await page.locator(".health.bad").waitFor();
	t.check((await page.getByText(/No answer for/).count()) === 0, "a stopped node holds up the page of another one");
	await t.ask("resume n3");
	await page.getByText("Healthy").waitFor({ timeout: 120000 });
}

// tokens: login, logout, and a token that is taken away.
export async function tokens(t) {
	const page = await t.open(t.urls[0]);
	t.expect((text) => text.includes("401") || text.includes("403"));
	await heading(page, "Log in");
	await usable(t, page, "login");
	await t.shot(page, "login");
	await page.getByLabel("Token").fill("wrong");
	await page.keyboard.press("Enter");
	await page.getByText("The node does not know this token").waitFor();
	await page.getByLabel("Token").fill("looker");
	await page.keyboard.press("Enter");
	await page.getByText("as looker").waitFor();
	await page.getByText("Healthy").waitFor();
	const cookies = await t.context.cookies();
	t.check(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === "Strict", `cookies: ${JSON.stringify(cookies)}`);
	const kept = await page.evaluate(() => [document.cookie, localStorage.length, sessionStorage.length, location.href]);
	t.check(!kept[0] && !kept[1] && !kept[2] && !kept[3].includes("looker"), `a script can read ${kept}`);
	await go(page, "#/topics/orders");
	await row(page, "billing").first().waitFor();
	// The node began a moment ago: what it has not measured yet is not 0.
	const stored = await page.locator(".facts > div", { hasText: "Stored" }).locator("dd").innerText();
	t.check(!/^0 B$/.test(stored), `a topic with messages has ${stored} stored`);
	// A single node answers all that its page asks, and the page is never old.
	await go(page, "#/nodes");
	await page.getByText("a single node").waitFor();
	await page.getByText(/^Version \d+\.\d+\.\d+, since \d{4}-\d\d-\d\d [\d:]+, NSQ port \d+, HTTP port \d+$/).waitFor();
	await t.shot(page, "single");
	const old = page.locator(".fresh.stale").waitFor().then(() => true, () => false);
	const asked = page.waitForResponse((r) => r.url().endsWith("/info")).then(() => false);
	t.check(!(await Promise.race([old, asked])), "the page of a node that answers says that it is old");
	await page.getByRole("button", { name: "Log out" }).click();
	await heading(page, "Log in");
	t.check(await page.getByLabel("Token").evaluate((e) => e === document.activeElement), "after the logout nothing has the focus");
	t.check((await t.context.cookies()).length === 0, "the cookie stays after the logout");
	await page.getByLabel("Token").fill("one");
	await page.keyboard.press("Enter");
	await page.getByText("as one").waitFor();
	await go(page, "#/topics");
	await page.getByLabel("This token may not list all topics").fill("orders");
	await page.getByRole("button", { name: "Open" }).click();
	await row(page, "billing").first().waitFor();
	await page.getByRole("button", { name: "Log out" }).click();
	await page.getByLabel("Token").fill("root");
	await page.keyboard.press("Enter");
	await page.getByText("as root").waitFor();
	await go(page, "#/topics/orders");
	await page.getByRole("button", { name: "Pause" }).click();
	await page.getByText("Topic orders is paused").waitFor();
	await page.getByRole("button", { name: "Resume" }).click();
	await go(page, "#/audit");
	await row(page, "login").first().waitFor();
	await page.getByRole("link", { name: "Tokens" }).click();
	const mine = row(page, "root");
	await mine.getByText("admin, publish on all topics").waitFor();
	await mine.filter({ has: page.getByRole("cell", { name: "1", exact: true }) }).waitFor(); // session
	await row(page, "one").getByText("view on topics orders").waitFor();
	await named(t, page, "tokens");
	await usable(t, page, "tokens");
	await t.shot(page, "tokens");
	await page.getByLabel("Contains").fill("look");
	await page.getByText("1 of 3 tokens").waitFor();
	// The token is taken out of the node's file while a page is open: the page asks for another one, and stays.
	await go(page, "#/topics/orders");
	await row(page, "billing").first().waitFor();
	await t.ask("forget root");
	await heading(page, "Log in");
	await page.getByText("The node does not know your token any more").waitFor();
	t.check(await page.getByLabel("Token").evaluate((e) => e === document.activeElement), "the token's field has no focus");
	await page.getByLabel("Token").fill("looker");
	await page.keyboard.press("Enter");
	await row(page, "billing").first().waitFor();
}

// many: 20,000 topics are pages of 50; nothing that is sent each second grows with them.
export async function many(t) {
	const page = await t.open(t.urls[0]);
	let by = {}; // bytes that came, by path
	page.on("response", async (r) => {
		const to = by; // a busy browser hands over the body much later
		const n = (await r.body().catch(() => "")).length, where = new URL(r.url()).pathname;
		to[where] = (to[where] ?? 0) + n;
	});
	await go(page, "#/topics");
	await page.getByText(/1–50 of 20,000/).waitFor();
	await page.getByRole("button", { name: "Next" }).click();
	await page.getByText(/51–100 of/).waitFor();
	await page.getByLabel("Name contains").fill("19995");
	await page.getByText("1–1 of 1").waitFor();
	await page.getByLabel("Name contains").fill("");
	await page.getByRole("button", { name: "Waiting" }).click();
	await page.getByText(/1–50 of 20,000/).waitFor();
	await page.waitForFunction(() => document.querySelector("tbody th")?.textContent.includes("orders"), null, { timeout: 120000 });
	await t.shot(page, "many-topics");
	// What comes from one look at the list to the next but one; a busy machine looks less often.
	const look = () => page.waitForResponse((r) => new URL(r.url()).pathname === "/topics");
	await look();
	by = {};
	await look();
	await (await look()).finished();
	const bytes = Object.values(by).reduce((sum, n) => sum + n, 0);
	t.check(bytes > 1000 && bytes < 150_000, `${bytes} bytes came with two looks: ${JSON.stringify(by)}`);
	await go(page, "#/");
	await page.getByText("Healthy").waitFor();
}
