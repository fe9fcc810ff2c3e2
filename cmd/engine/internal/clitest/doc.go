// Package clitest has what the tests of commands share: terminals on which somebody types, and certificates. It is
// imported only by tests.
package clitest
