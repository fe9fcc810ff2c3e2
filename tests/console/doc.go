// Package console has tests of the web console in a real browser. Debian's chromium, driven by playwright-core from
// npm, visits every page of real nodes, and axe-core looks at each; browser/scenarios.mjs says what is done there. The
// screenshots are in screenshots, which git ignores: look at them after a change. `make console-test` runs the tests;
// without the build tag console this package is empty.
package console
