"""The column of oriented boxes in the table of mechanisms and kinds of labels, tests/mm/data/test_labels.py."""

HERE = "tests/extensions/oriented"
LABELS, STEPS, MODEL = (f"{HERE}/test_oriented_{name}.py" for name in ("labels", "steps", "rfdetr"))
COLUMN = {
    "oriented box": {
        "order of names in files": ("right", f"{LABELS}::test_joined_files"),
        "order of names in a checkpoint": (
            *("right", "tests/mm/config/test_classes.py::test_classes_follow_the_order_of_a_checkpoint"),
        ),
        "checks": ("right", f"{LABELS}::test_faults", f"{LABELS}::test_sound_corners"),
        "pictures of check": ("right", f"{MODEL}::test_pictures"),
        "flips": ("right", f"{STEPS}::test_corners_move_with_the_pixels"),
        "crops, mosaics, pasted objects": (
            *("right", f"{STEPS}::test_a_crop_keeps_objects_whose_centre_is_inside", f"{STEPS}::test_a_mosaic"),
        ),
        "joined data": ("right", f"{LABELS}::test_joined_files"),
        "new": ("right", f"{LABELS}::test_new", f"{LABELS}::test_new_of_yolo_and_dota"),
        "tiles in predict": ("right", f"{MODEL}::test_tiles_join_oriented_boxes"),
        "tiles in test": ("right", f"{MODEL}::test_from_the_training_to_the_runtime"),
        "results": ("right", f"{MODEL}::test_results"),
        "supervision": ("right", f"{MODEL}::test_results"),
        "predict --as-dataset": ("right", f"{MODEL}::test_predictions_as_a_data_set"),
        "to_coco": ("right", f"{MODEL}::test_results"),
        "export": ("right", f"{MODEL}::test_from_the_training_to_the_runtime"),
        "export --with-preprocessing": ("right", f"{MODEL}::test_a_program_of_photos"),
        "verify": ("right", f"{MODEL}::test_from_the_training_to_the_runtime"),
        "operating point": ("right", f"{MODEL}::test_report_and_operating_point"),
        "joined models": ("right", f"{MODEL}::test_joined_models"),
        "cached features": ("absent", "maps are stored without labels, which are read as ever"),
        "metric as pycocotools": ("absent", "pycocotools has no oriented boxes"),
    }
}
