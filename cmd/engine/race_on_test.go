//go:build race

package main

// underRace says whether the race detector watches these tests.
const underRace = true
