// Package seedtest says which seeds the tests run that draw at random, so that a campaign can give any of them others.
// Tests of machines, storage and the simulator use it. It imports only the standard library.
package seedtest
