// Package authtest writes token files for tests. Tests of server, of the packages below it and of whole nodes use it.
// It imports only the standard library.
package authtest
