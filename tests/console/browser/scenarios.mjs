// What is tested in the browser. Each function gets the tools of run.mjs.

const phone = { width: 360, height: 740 };
const script = "<script>alert(1)</script><img src=x onerror=alert(2)>";

const go = (page, hash) => page.evaluate((h) => void (location.hash = h), hash);
const heading = (page, name) => page.getByRole("heading", { level: 1 }).filter({ hasText: name }).waitFor();
const row = (page, name) => page.getByRole("row").filter({ hasText: name });

// fits fails if the page scrolls to the side.
async function fits(t, page, what) {
	const [wide, seen] = await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth]);
	t.check(wide <= seen, `${what} is ${wide} px wide, the screen has ${seen}`);
}

// named fails if something that can be operated has no name for a screen reader, or cannot be reached with Tab.
async function named(t, page, what) {
	const bad = await page.evaluate(() => [...document.querySelectorAll("a,button,input,select,textarea,summary,[role=img],[role=region]")]
		.filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.labels?.[0]?.textContent.trim() || e.textContent.trim()) || e.tabIndex < 0 && !e.disabled && e.getAttribute("role") !== "img")
		.map((e) => e.outerHTML.slice(0, 200)));
	t.check(bad.length === 0, `${what}: without a name, or not to be reached: ${bad.join("\n")}`);
}

async function openParts(page) {
	for (const s of await page.locator("summary").all()) await s.click();
}

// all visits every page, with settings such as a phone's.
async function all(t, page, suffix, each = async () => {}) {
	const visit = async (hash, title, name, ready) => {
		await go(page, hash);
		await heading(page, title);
		await ready?.();
		await named(t, page, name);
		await each(name);
		await t.shot(page, `${name}${suffix}`);
	};
	await visit("#/", "Overview", "overview", () => page.getByText("Healthy").waitFor());
	await visit("#/topics", "Topics", "topics", () => row(page, "orders").first().waitFor());
	await visit("#/topics/orders", "orders", "topic", async () => {
		await row(page, "billing").first().waitFor();
		await openParts(page);
		await page.getByRole("button", { name: "Look" }).click();
		await page.locator(".messages li").first().waitFor();
		await page.getByLabel("Quota (messages)").waitFor();
	});
	await visit("#/topics/orders/billing", "billing", "channel", async () => {
		await page.getByText("holder").first().waitFor();
		await openParts(page);
		await page.getByRole("region", { name: "Messages in flight" }).getByRole("row").nth(1).waitFor();
		await page.getByRole("button", { name: "Look" }).click();
		await page.getByText("as they were a moment ago").or(page.getByText("There is no message")).waitFor();
	});
	await visit("#/nodes", "Nodes", "nodes", () => page.locator(".node").first().waitFor());
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
	await page.getByText("Look at stored messages").click();
	await page.getByLabel("Count").fill("100");
	for (const form of ["text", "JSON", "hex"]) {
		await page.getByLabel("Bodies as").selectOption(form);
		await page.getByRole("button", { name: "Look" }).click();
		if (form === "text") await page.locator("pre", { hasText: script }).first().waitFor();
	}
	await page.locator(".header", { hasText: script }).first().waitFor();
	t.check((await page.locator("main script, main img[src=x]").count()) === 0, "a body became an element");
	await go(page, `#/topics/${encodeURIComponent(script)}`); // there is no such topic, and its name is shown
	await heading(page, script);
	await go(page, "#/topics");
	await page.getByLabel("Name contains").fill(script);
	await page.getByText("No topic has that in its name.").waitFor();
	await go(page, "#/audit");
	await page.getByLabel("Contains").fill("<script>");
	await t.shot(page, "texts");
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
	await tabs[0].getByText("The settings hold from now on.").waitFor();
	await tabs[1].getByRole("button", { name: "Save" }).click();
	await tabs[1].getByText("Somebody else changed the settings meanwhile").waitFor();
	await tabs[1].getByText("was 100").waitFor();
	await t.shot(tabs[1], "settings-conflict");
	await tabs[1].getByRole("button", { name: "Save" }).click();
	await tabs[1].getByText("The settings hold from now on.").waitFor();
	await tabs[0].getByRole("button", { name: "Read again" }).click();
	await tabs[0].waitForFunction(() => [...document.querySelectorAll("input")].some((e) => e.value === "200"));
}

// actions: what changes things, with the keyboard.
export async function actions(t) {
	const page = await t.open(t.urls[1]);
	await go(page, "#/topics");
	await page.getByLabel("New topic").fill("made");
	await page.keyboard.press("Enter");
	await page.getByText("Topic made exists.").waitFor();
	await go(page, "#/topics/made");
	await page.getByLabel("New channel").fill("c");
	await page.keyboard.press("Enter");
	await page.getByText("Channel c exists.").waitFor();
	await row(page, "c").getByRole("link", { name: "c" }).click();
	await heading(page, "made");
	await page.getByRole("button", { name: "Pause" }).press("Enter");
	await page.getByRole("button", { name: "End the pause" }).press("Enter");
	await page.getByText("Channel c goes on.").waitFor();
	await page.getByText("Go to another place").click();
	await page.getByRole("combobox", { name: "To" }).selectOption("end");
	await page.getByRole("button", { name: "Go there…" }).press("Enter");
	await page.getByRole("dialog").getByRole("textbox").fill("c");
	await page.keyboard.press("Enter");
	await page.getByText("Channel c goes on at").waitFor();
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
	await t.shot(page, "dialog");
	await page.keyboard.press("Escape");
	await dialog.waitFor({ state: "detached" });
	t.check(await button.evaluate((e) => e === document.activeElement), "the focus does not come back after the dialog");
	await page.keyboard.press("Enter");
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
	await page.getByRole("button", { name: "Give the leadership of partition 0" }).click();
	await page.getByText("is to lead partition 0").waitFor();
	// The first Tab reaches the link that skips the header.
	await page.reload();
	await heading(page, "orders");
	await page.keyboard.press("Tab");
	t.check((await page.evaluate(() => document.activeElement.textContent)) === "To the page", "the first Tab skips no header");
}

// dead: a node is killed while its leaders' numbers are on the screen of another one, and then that one, too.
export async function dead(t) {
	const page = await t.open(t.urls[0]);
	t.expect(() => true); // the browser tells of every request that failed
	await page.getByText("Healthy").waitFor();
	await t.ask("kill n3");
	await page.getByText("Node n3 gives no numbers").waitFor();
	await page.locator(".health.bad").waitFor();
	await t.shot(page, "node-dead");
	await go(page, "#/nodes");
	await page.getByRole("listitem", { name: "Node n3" }).getByText(/dead for/).waitFor();
	await page.getByRole("listitem", { name: "Node n1" }).getByText("live").waitFor();
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
	await page.getByText("Healthy").waitFor({ timeout: 40000 });
	await page.getByText(/No answer for/).waitFor({ state: "detached" });
}

// tokens: login, logout, and a token that may only look.
export async function tokens(t) {
	const page = await t.open(t.urls[0]);
	t.expect((text) => text.includes("401") || text.includes("403"));
	await heading(page, "Log in");
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
	await page.getByRole("button", { name: "Pause" }).click();
	await page.getByText("This token may not do that").waitFor();
	await page.getByText("Settings", { exact: true }).click();
	await page.getByLabel("Quota (messages)").fill("5");
	await page.getByRole("button", { name: "Save" }).click();
	await page.locator(".settings").getByText("This token may not do that").waitFor();
	await page.getByText("Look at stored messages").click();
	await page.getByRole("button", { name: "Look" }).click();
	await page.locator("details").getByText("This token may not do that").nth(1).waitFor();
	await t.shot(page, "view-only");
	await page.getByRole("button", { name: "Log out" }).click();
	await heading(page, "Log in");
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
	await page.getByRole("button", { name: "End the pause" }).click();
	await go(page, "#/audit");
	await row(page, "login").first().waitFor();
}

// many: 20,000 topics are pages of 50; nothing that is sent each second grows with them.
export async function many(t) {
	const page = await t.open(t.urls[0]);
	let bytes = 0;
	page.on("response", async (r) => (bytes += (await r.body().catch(() => "")).length));
	await go(page, "#/topics");
	await page.getByText(/1–50 of 20,000/).waitFor();
	await page.getByRole("button", { name: "Next" }).click();
	await page.getByText(/51–100 of/).waitFor();
	await page.getByLabel("Name contains").fill("19995");
	await page.getByText("1–1 of 1").waitFor();
	await page.getByLabel("Name contains").fill("");
	await page.getByRole("button", { name: "Waiting" }).click();
	await page.getByText(/1–50 of 20,000/).waitFor();
	await page.waitForFunction(() => document.querySelector("tbody th")?.textContent.includes("orders"), null, { timeout: 25000 });
	await t.shot(page, "many-topics");
	bytes = 0;
	await page.waitForTimeout(4200); // two looks
	t.check(bytes > 1000 && bytes < 150_000, `${bytes} bytes came in 4.2 s`);
	await go(page, "#/");
	await page.getByText("Healthy").waitFor();
}
