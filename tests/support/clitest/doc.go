// Package clitest has what the tests of commands share: terminals on which somebody types, and certificates. Tests of
// cmd/engine and the packages below it use it. It imports nothing of ours.
package clitest
