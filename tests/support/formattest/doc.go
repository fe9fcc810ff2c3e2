// Package formattest is shared by the tests of the formats. It reads the tables of a FORMAT.md, with which the tests
// compare the code, and keeps bytes that earlier versions wrote, which must stay readable for ever. The tests of each
// codec use it. It imports only the standard library.
package formattest
