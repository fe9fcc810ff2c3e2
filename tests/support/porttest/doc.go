// Package porttest gives tests ports of 127.0.0.1 that stay theirs until the process ends, also while nobody listens
// on them: a node that a test stops finds its port free when it starts again. Whoever looks for a port that is free at
// the moment, and listens later, may meet another test, or one of another package, that found the same.
//
// Tests that start nodes or etcd use it, in this process or in others. It imports only the standard library.
package porttest
