//go:build race

package fold

const raceEnabled = true
