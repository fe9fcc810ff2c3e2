// Package patience says how long tests wait for something that must happen. Tests of most packages use it, and
// tools/mutants, which shortens the wait. It imports only the standard library.
package patience
