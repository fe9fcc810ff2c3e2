// Package support has no code. Each package below it has something that the tests of several packages share, such as a
// disk that fails on purpose. Tests, tools and bench import them, the product never (docs, TestMapIsTrue). What only
// one package's tests need stays in their own files.
package support
