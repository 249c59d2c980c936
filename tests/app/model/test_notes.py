from documents import chain_document
from enplace.writers.archive import write_project
from enplace_studio.files.session import open_file, to_project
from enplace_studio.model.notes import all_notes, note_on, notes_from_json, told_notes


def test_a_note_is_kept_with_its_ops_in_the_project_and_can_be_undone(tmp_path):
    document = chain_document()
    document.write_note([0, 1], "wait for\neach other")
    document.write_note([2], "too slow")
    document.write_note([2], "fine now")  # of the same ops, the last words stay
    document.remark_plan(document.current, "as agreed")
    assert document.modified
    path = tmp_path / "work.enplace"
    write_project(path, to_project(document.project, document.view))
    opened = open_file(path).project
    found = [(sorted(each.ops), each.text) for each in all_notes(opened)]
    assert found == [([0, 1], "wait for each other"), ([2], "fine now")]
    assert told_notes(opened, opened.current) == [
        ("this plan", "as agreed"),
        ("2 groups", "wait for each other"),
        ("c", "fine now"),
    ]
    document.undo_stack.undo()
    document.undo_stack.undo()
    assert note_on(document.project, [2]) == "too slow"


def test_empty_words_remove_a_note():
    document = chain_document()
    document.write_note([2], "too slow")
    document.write_note([2], "  ")
    assert all_notes(document.project) == []


def test_damaged_notes_and_those_on_ops_that_are_gone_are_left_out():
    document = chain_document()
    found = notes_from_json(
        [{"ops": ["gone"], "text": "x"}, 3, {"text": "y"}, {"ops": [], "text": "z"}]
    )
    assert [note.text for note in found] == ["x"]
    assert notes_from_json({"ops": 1}) == ()
    assert all_notes(document.project) == []
