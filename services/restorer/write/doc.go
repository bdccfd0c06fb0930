// Package write is the restorer: it does tasks of the shared restores of its site (package spread),
// and writes into file systems that are mounted on its machine.
//
//	service.go  claims tasks
//	task.go     works on one attempt at a task, and keeps its lease
//	target.go   which targets are allowed
//
// A restorer has no identity and no key file. Each process makes a key pair in memory, and gets the
// data keys of the packs that a task needs, sealed to it.
//
// An attempt ends by itself before its lease ends. A process that was paused, or whose system calls
// hang, may still write a little after that, while a later attempt is at work. Both write the same
// content. Each attempt has temporary names of its own. An attempt that ends early removes no file.
package write
