-- The names of all entries, for bctl find. Binaries of version 11 can work with this schema: what they write is marked as not in these
-- tables.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (28, 11);
-- Names that pages have had, in blocks (package names). number is the snapshot that brought them; 0: they were collected from the
-- pages; -1: they are being collected.
CREATE TABLE name_blocks (
    id     INTEGER NOT NULL PRIMARY KEY,
    shard  INTEGER NOT NULL,
    number INTEGER NOT NULL,
    block  BLOB    NOT NULL
);
CREATE INDEX name_blocks_shard ON name_blocks (shard, number, id);
-- How many blocks a shard has of one number, and how many names.
CREATE TABLE name_groups (
    shard  INTEGER NOT NULL,
    number INTEGER NOT NULL,
    blocks INTEGER NOT NULL,
    names  INTEGER NOT NULL,
    build  INTEGER NOT NULL DEFAULT 0, -- who is collecting them
    PRIMARY KEY (shard, number)
);
-- The shards that have pages with names that are in no block. Each time that such a page is written, marks grows.
CREATE TABLE names_incomplete (
    shard INTEGER NOT NULL PRIMARY KEY,
    marks INTEGER NOT NULL
);
INSERT INTO names_incomplete (shard, marks) SELECT id, 1 FROM shards WHERE last_number > 0;

-- A binary that stores names says so in this table while it writes pages. Others write pages without their names.
CREATE TABLE names_writer (stores INTEGER NOT NULL);
INSERT INTO names_writer (stores) VALUES (0);
-- +goose StatementBegin
CREATE TRIGGER pages_without_names AFTER INSERT ON pages WHEN (SELECT stores FROM names_writer) = 0
BEGIN
    INSERT INTO names_incomplete (shard, marks) VALUES (NEW.shard, 1) ON CONFLICT (shard) DO UPDATE SET marks = marks + 1;
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER pages_without_names;
DROP TABLE names_writer;
DROP TABLE names_incomplete;
DROP TABLE name_groups;
DROP TABLE name_blocks;
DELETE FROM schema_versions WHERE version = 28;
