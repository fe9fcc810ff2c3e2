// Package bench measures the engine: embedded, and as a process over NSQ's TCP protocol and the native one. Every run
// begins with a header that says what the figures depend on. Compare variants within one run only: machines drift.
package bench
