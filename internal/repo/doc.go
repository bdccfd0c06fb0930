// Package repo makes repositories and opens them.
//
// A repository is four things that must agree on its id: the object
// store.ConfigName in the store, a row in the index, the worker key (a file
// that every worker holds) and the identity (a file that only who restores holds).
//
// # What a crash of Init leaves
//
// Init works in this order; each step finds what an earlier run has left.
//
//	step                 a crash after it leaves          the next Init
//	1 migrate the index  an empty index                   goes on
//	2 write identity     a key that opens nothing         takes it, where it was named or the worker key says its id; else makes a new one
//	3 write worker key   a key of no repository           takes it and its id
//	4 put the object     a repository without index row   goes on: THE REPOSITORY EXISTS
//	5 create index row   the repository                   backup.ErrExists
//
// After step 4 an Init that no longer has the worker key reads it with the
// identity; without that either, it says what is missing and changes nothing.
package repo
